"""A decoder-only transformer of the Qwen2, Qwen2.5, Qwen3 and Llama architectures, with Hugging Face's parameter names.

The tokens of many sequences lie packed on one axis T. Attention is a parameter of `forward`: training (packed rows),
prefill and decode (KV cache) are three small `Attention` objects over one set of weights. Tensor suffixes:
core/__init__.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from core.engine import kernel
from core.engine.four_bits import FourBits
from core.engine.states import StateSizes
from core.hub import count_positions

OWN_FAMILIES = ("qwen2", "qwen3", "llama")


@dataclass(frozen=True)
class ModelConfig:
    """Holds the sizes and switches read from a Hugging Face config."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_positions: int
    tie_embeddings: bool
    qk_norm: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    inv_freq: tuple[float, ...] = ()
    rope_scale: float = 1.0
    states: StateSizes | None = None
    """Says which layers remember in place of attending: see states.py."""
    scored: bool = False
    """Says that layers have scores of their own: see scores.py."""
    other: str = ""
    """Holds the whole config, as JSON, of a family without a file of ours: see any_decoder.py."""

    @classmethod
    def from_hf(cls, config: Any) -> ModelConfig:
        """Read a `PretrainedConfig` that `has_own_file`. Raises as `check_rope`."""
        check_rope(config)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        inv_freq, rope_scale = _rope_frequencies(config, head_dim)
        attention_bias = bool(getattr(config, "attention_bias", False))
        return cls(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=head_dim,
            rms_norm_eps=config.rms_norm_eps,
            max_positions=count_positions(config.to_dict()),
            tie_embeddings=bool(config.tie_word_embeddings),
            qkv_bias=config.model_type == "qwen2" or attention_bias,
            output_bias=attention_bias,
            mlp_bias=bool(getattr(config, "mlp_bias", False)),
            qk_norm=config.model_type == "qwen3",
            inv_freq=inv_freq,
            rope_scale=rope_scale,
        )

    @property
    def attending_layers(self) -> list[int]:
        """List the layers that have keys and values."""
        return [layer for layer in range(self.num_layers) if self.states is None or layer not in self.states.layers]

    def context(self, wanted: int | None) -> int:
        """Return how many tokens a call may have: `wanted`, by default all positions.

        Raises:
            ValueError: the model has fewer positions.
        """
        if wanted is not None and wanted > self.max_positions:
            raise ValueError(
                f"max_model_len {wanted} is above the {self.max_positions} positions that config.json allows "
                "(max_position_embeddings, or what YaRN or linear scaling makes of it); lower it, or extend the "
                "positions as the model's card says (rope_scaling)"
            )
        return wanted or self.max_positions


def has_own_file(config: Any) -> bool:
    """Say whether this file computes the model of a `PretrainedConfig` with all its options."""
    windows = getattr(config, "use_sliding_window", False)
    return config.model_type in OWN_FAMILIES and config.hidden_act == "silu" and not windows


def _rope_frequencies(config: Any, head_dim: int) -> tuple[tuple[float, ...], float]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = dict(getattr(config, "rope_parameters", None) or {})
    kind = rope.get("rope_type", "default")
    if kind == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        return tuple((1.0 / rope["rope_theta"] ** exponents).tolist()), 1.0
    inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return tuple(inv_freq.tolist()), float(scale)


def check_rope(config: Any) -> None:
    """Raise ValueError where rotations depend on the length of the sequence: a batch holds many lengths.

    So it is where a part of a head is to rotate, of families in which transformers rotates it whole.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    if config.model_type in OWN_FAMILIES and rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("partial_rotary_factor is not supported: this architecture rotates whole heads")
    for one in (rope, *(each for each in rope.values() if isinstance(each, dict))):  # or one for each kind of layer
        if (kind := one.get("rope_type")) in ("dynamic", "longrope"):
            raise ValueError(
                f"rope_type {kind!r} depends on the sequence length and is not supported; use yarn or linear"
            )


Attention = Callable[..., Tensor]
"""Computes how the packed tokens of one forward attend to each other; each layer calls it once, with its number and the
queries [T, H, D], keys and values [T, K, D], and `Scores` if it has any. It returns the attended values, [T, H, D]."""


@cache
def can_prepack(dtype: torch.dtype) -> bool:
    """Return whether weights can be prepacked: for our own products, or by a private operator of PyTorch in bfloat16.

    In float32 PyTorch's product with prepacked weights is up to three times less precise than the plain one.
    """
    if dtype == torch.float32:
        return kernel.panel_width() > 0
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    return dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def is_sampling() -> bool:
    """Return whether an engine computes: they compute in inference mode, and only they."""
    return not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()  # what is compiled is trained


class LinearAdapter(Protocol):
    """Takes the outputs and the inputs of a linear map, and adds to the outputs: see core/engine/lora.py.

    `prepack` prepares `add_on_tiles`, which does the same on the tiles of a CPU while an engine samples.
    """

    def __call__(self, y: Tensor, x: Tensor) -> Tensor: ...
    def prepack(self) -> None: ...
    def add_on_tiles(self, y: Tensor, x: Tensor) -> Tensor: ...


class Linear(nn.Linear):
    """A linear map that rounds a row alike whether it comes alone or with others.

    For one row of bfloat16, the CPU takes another kernel, which adds up in another order.
    """

    adapter: LinearAdapter | None = None
    four_bits: FourBits | None = None
    """Holds the weight if there is no other: see core/engine/four_bits.py."""
    prepacked: Tensor | None = None
    """Holds the weight once more, in the order in which the CPU reads it fastest, while an engine samples."""

    def read_weight(self) -> Tensor:
        """Return the weight [outputs, inputs], restored if it is kept in 4 bits."""
        return self.weight.detach() if self.four_bits is None else self.four_bits.restore()

    def pack_in_4_bits(self, device: torch.device) -> None:
        """Keep the weight in 4 bits on `device`, and no longer as a parameter."""
        self.four_bits = FourBits(self.weight.detach().to(device))
        self.register_parameter("weight", None)

    def prepack(self) -> None:
        """Make `prepacked` from the weight as it is now, if it can be."""
        if self.four_bits is not None:
            return
        weight = self.weight.detach()
        if weight.device.type != "cpu" or not can_prepack(weight.dtype):
            return
        fits = self.out_features % kernel.BLOCK == self.in_features % kernel.DEPTH == 0
        if weight.dtype == torch.float32:
            if self.out_features >= kernel.FEWEST_OUTPUTS:
                self.prepacked = kernel.pack_panels(weight)
        elif fits and kernel.has_tiles():
            self.prepacked = kernel.pack_panels(weight)
            if self.adapter is not None:
                self.adapter.prepack()
        else:
            self.prepacked = torch.ops.mkldnn._reorder_linear_weight(weight, 16)

    def forward(self, x: Tensor) -> Tensor:
        packed = self.prepacked if is_sampling() else None
        alone = x.shape[0] == 1 and x.dtype == torch.bfloat16 and x.device.type == "cpu"
        if packed is not None and not packed.is_mkldnn:
            y = kernel.multiply(x, packed, self.bias, self.out_features)
            if self.adapter is not None and packed.dtype == torch.bfloat16:
                return self.adapter.add_on_tiles(y, x)
        elif alone:
            return self.forward(torch.cat([x, x]))[:1]
        elif packed is not None:
            y = torch.ops.mkldnn._linear_pointwise(x, packed, self.bias, "none", [], "")
        else:
            y = super().forward(x) if self.four_bits is None else self.four_bits(x, self.bias)
        return y if self.adapter is None else self.adapter(y, x)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:  # the hidden states [T, C], or the heads of queries or keys [T, H, D]
        # On CUDA one kernel computes the same, in float32 inside; under autocast its result would be float32.
        if x.device.type == "cuda" and not torch.is_autocast_enabled("cuda"):
            return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps).to(x.dtype)


class SelfAttention(nn.Module):
    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.layer, self.head_dim = layer, config.head_dim
        width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, width, bias=config.qkv_bias)
        self.k_proj = Linear(config.hidden_size, kv_width, bias=config.qkv_bias)
        self.v_proj = Linear(config.hidden_size, kv_width, bias=config.qkv_bias)
        self.o_proj = Linear(width, config.hidden_size, bias=config.output_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.qk_norm = config.qk_norm

    def project(self, x_TC: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values; queries and keys are rotated by their positions."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q_THD, k_TKD, v_TKD = (project(x_TC).unflatten(-1, (-1, self.head_dim)) for project in projections)
        if self.qk_norm:
            q_THD, k_TKD = self.q_norm(q_THD), self.k_norm(k_TKD)
        return _rotate(q_THD, *rotation), _rotate(k_TKD, *rotation), v_TKD


def select(x_T: Tensor, keep_R: Tensor | None) -> Tensor:
    return x_T if keep_R is None else x_T.index_select(0, keep_R)


def _rotate(x_THD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    # Hugging Face's layout: coordinate d of the first half of a head rotates with coordinate d of the second half. The
    # first half of the sines has their sign turned.
    first, second = x_THD.chunk(2, dim=-1)
    turned_THD = torch.cat((second, first), dim=-1) * sin_TD[:, None]
    return (x_THD * cos_TD[:, None]).add_(turned_THD)


class MLP(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x_TC: Tensor) -> Tensor:
        gates, values = self.gate_proj(x_TC), self.up_proj(x_TC)
        if is_sampling():  # in place, which spares two tensors; training needs them
            return self.down_proj(F.silu(gates, inplace=True).mul_(values))
        return self.down_proj(F.silu(gates) * values)


@cache
def compile_for_all_lengths(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of a module and of tensors that all have the tokens as their first axis, with torch.compile.

    The modules of all layers share its graphs, because a graph takes weights as inputs. PyTorch makes further graphs
    for one token, for more than 4,096, for another number of threads, and for inputs without gradient. After eight it
    computes what has no graph as it is written.
    """
    compiled = torch.compile(function)

    def call(module: nn.Module, *tensors: Tensor) -> Any:
        for tensor in tensors:
            # Not dynamic=True: a pack with as many tokens as the width would make the width dynamic too.
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return compiled(module, *tensors)

    return call


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.self_attn, self.mlp = SelfAttention(config, layer), MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        x_TC: Tensor,
        rotation: tuple[Tensor, Tensor],
        attend: Attention,
        keep_R: Tensor | None,
        compiled: bool = False,
    ) -> Tensor:
        before, after = DecoderLayer.before_attention, DecoderLayer.after_attention
        if compiled:
            before, after = compile_for_all_lengths(before), compile_for_all_lengths(after)
        q_THD, k_TKD, v_TKD = before(self, x_TC, *rotation)
        out_THD = attend(self.self_attn.layer, q_THD, k_TKD, v_TKD)
        return after(self, select(x_TC, keep_R), select(out_THD, keep_R))  # [R, C] where keep_R is given

    def before_attention(self, x_TC: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.self_attn.project(self.input_layernorm(x_TC), (cos_TD, sin_TD))

    def after_attention(self, x_TC: Tensor, out_THD: Tensor) -> Tensor:
        x_TC = x_TC + self.self_attn.o_proj(out_THD.flatten(1))
        return x_TC + self.mlp(self.post_attention_layernorm(x_TC))


class Decoder(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class CausalLM(nn.Module):
    """Maps tokens to hidden states; `logits` is called only for the positions that need it."""

    plain_head = True
    """Says that the logits are hidden states times the head's weight, and no more than a bias."""
    experts_per_token = 0
    """Counts the experts that a token goes to; 0 for a model without experts, or without a loss that balances them."""
    keeps_router_logits = False
    router_logits: tuple[Tensor, ...] = ()
    """Holds those of the last forward, [T, experts] for each layer with experts, if `keeps_router_logits`."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.inv_freq = torch.tensor(config.inv_freq)
        self.prepacked = False
        self.gradient_checkpointing = False
        """Makes the backward pass compute the activations inside layers again instead of keeping them."""
        self.compiled = False
        """Compiles what the layers compute before and after attention; on the CPU, where gradients are recorded."""

    @property
    def device(self) -> torch.device:
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_head.weight.dtype

    def forward(self, ids_T: Tensor, positions_T: Tensor, attend: Attention, keep_R: Tensor | None = None) -> Tensor:
        """Return the hidden states after the last norm, [T, C], or with `keep_R` those of the tokens it lists, [R, C].

        The other tokens are not computed beyond the last layer's attention.
        """
        if self.inv_freq.device != ids_T.device:
            self.inv_freq = self.inv_freq.to(ids_T.device)
        x_TC = self.model.embed_tokens(ids_T)
        # One angle per pair of coordinates; both halves of a head use the same D / 2 angles.
        angles_TD = positions_T[:, None].float() * self.inv_freq
        cos_TD, sin_TD = angles_TD.cos() * self.config.rope_scale, angles_TD.sin() * self.config.rope_scale
        rotation = cos_TD.repeat(1, 2).to(x_TC.dtype), torch.cat((-sin_TD, sin_TD), dim=1).to(x_TC.dtype)
        compiled = self.compiled and (torch.is_grad_enabled() or x_TC.device.type == "cuda")
        last = len(self.model.layers) - 1
        for number, layer in enumerate(self.model.layers):
            keep = keep_R if number == last else None
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x_TC = checkpoint(layer, x_TC, rotation, attend, keep, compiled, use_reentrant=False)
            else:
                x_TC = layer(x_TC, rotation, attend, keep, compiled)
        return self.model.norm(x_TC)

    def prepack_weights(self) -> None:
        """Prepack the weights of all linear maps, unless they are. Drop them before the weights change."""
        if not self.prepacked:
            self.prepacked = True
            for module in self.modules():
                if isinstance(module, Linear):
                    module.prepack()

    def drop_prepacked(self) -> None:
        """Free the prepacked weights."""
        self.prepacked = False
        for module in self.modules():
            if isinstance(module, Linear):
                module.prepacked = None

    def logits(self, hidden_TC: Tensor) -> Tensor:
        """Return the next-token logits in float32, [T, V]."""
        return self.lm_head(hidden_TC).float()
