"""Runs decoders of transformers that have no file of ours: its modules compute the layers, the engine the attention.

Every layer must attend causally to earlier tokens, maybe in a window, and all with the same heads, or be a gated delta
net (delta_net.py). `describe` finds out by a forward without data, before a weight is read. `check_forward` compares
the loaded model with transformers' own forward, so a family that computes anything else between its tokens is refused.
Tensor suffixes: core/__init__.py.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from core.engine.attention import Span, prepare_step
from core.engine.cache import PagedCache
from core.engine.delta_net import DeltaNet, replace_delta_net
from core.engine.model import Attention, CausalLM, Linear, ModelConfig, check_rope, select
from core.engine.scores import Scores
from core.engine.states import Advance, StateSizes, count_slots
from core.hub import CheckpointError, count_positions

NAME = "tokentrue"
"""Names our attention among those of transformers."""

PROBE = 6
"""Counts the tokens on which a loaded model is compared with transformers."""


def attend_for(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    attend: Attention | None = None,
    longest: int = 0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Give the heads of one layer, [1, H, T, D] and twice [1, K, T, D], to `attend`: transformers' interface."""
    if attend is None:
        raise ValueError("its layers in transformers do not hand arguments to their attention")
    q_THD, k_TKD, v_TKD = (heads[0].transpose(0, 1) for heads in (query, key, value))
    size, values = q_THD.shape[-1], v_TKD.shape[-1]
    if scaling is not None and not math.isclose(scaling, size**-0.5):  # our attention divides by the root of D
        q_THD = q_THD * (scaling * size**0.5)
    # The cache keeps values and keys of one size.
    heads = q_THD.contiguous(), k_TKD.contiguous(), F.pad(v_TKD, (0, size - values))
    window = None if sliding_window is None or longest <= sliding_window else sliding_window
    scores = Scores(window, softcap, s_aux)
    out_THD = attend(module.layer_idx, *heads, scores if any(x is not None for x in scores) else None)
    return out_THD[None, ..., :values], None


class _Recorder:
    """Stands for attention in a forward without data, and keeps the sizes of the heads of each layer."""

    def __init__(self) -> None:
        self.sizes: dict[int, tuple[int, int, int]] = {}
        self.scored = False
        self.windows: dict[int, int | None] = {}
        self.states: dict[int, tuple[tuple[int, ...], ...]] = {}

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, scores: Scores | None) -> Tensor:
        self.scored |= scores is not None
        self.windows[layer] = None if scores is None else scores.window
        self.sizes[layer] = (q_THD.shape[1], k_TKD.shape[1], q_THD.shape[2])
        return torch.empty_like(q_THD)

    def recur(self, layer: int, advance: Advance, *inputs: Tensor) -> Tensor:
        out_NLHE, state = advance(None, torch.tensor([len(inputs[0])]), *(x[None] for x in inputs))
        self.states[layer] = tuple(tuple(x.shape[1:]) for x in state)
        return out_NLHE[0]


class BatchedLinear(Linear):
    """A linear map of transformers, whose inputs have a batch axis before the tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.dim() == 2 else super().forward(x.flatten(0, -2)).unflatten(0, x.shape[:-1])


class AnyDecoder(CausalLM):
    """Gives a model of transformers the methods of a CausalLM. Its parameters keep the names of transformers."""

    def __init__(self, config: ModelConfig, network: Any):
        nn.Module.__init__(self)
        self.config, self.prepacked, self._checkpoints = config, False, False
        # Families without this function balance their experts otherwise, such as by a bias.
        if hasattr(sys.modules[type(network).__module__], "load_balancing_loss_func"):
            self.experts_per_token = getattr(network.config, "num_experts_per_tok", None) or 0
        for module in network.modules():
            if type(module) is nn.Linear:
                module.__class__ = BatchedLinear
            replace_delta_net(module)
        for name, child in network.named_children():
            self.add_module(name, child)
        self._network = (network,)  # in a tuple, for its modules are named already
        # A pattern of GLM names a layer by its number, which a larger model has.
        own, patterns = list(network.state_dict()), network._keys_to_ignore_on_load_unexpected or ()
        self._beside = [pattern for pattern in patterns if not any(re.search(pattern, name) for name in own)]
        self.eval()

    @property
    def network(self) -> Any:
        return self._network[0]

    @property
    def lm_head(self) -> Linear:  # type: ignore[override]
        head = self.network.get_output_embeddings()
        assert isinstance(head, Linear)
        return head

    def is_beside(self, name: str) -> bool:
        """Return whether a tensor of the checkpoint belongs to another part, such as one for images."""
        return any(re.search(pattern, name) for pattern in self._beside)

    @property
    def gradient_checkpointing(self) -> bool:
        return self._checkpoints

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool) -> None:
        from transformers.modeling_layers import GradientCheckpointingLayer

        self._checkpoints = value
        for layer in self.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                # transformers' own switch takes a layer that trains for one with dropout.
                forward = type(layer).forward.__get__(layer)
                layer.forward = partial(_compute_twice, forward) if value else forward

    @property
    def plain_head(self) -> bool:  # type: ignore[override]
        return not any(self._head_options())

    def train(self, mode: bool = True) -> AnyDecoder:
        """Change nothing: a policy has no dropout."""
        return super().train(False)

    def forward(self, ids_T: Tensor, positions_T: Tensor, attend: Attention, keep_R: Tensor | None = None) -> Tensor:
        out = self.network.base_model(
            input_ids=ids_T[None],
            position_ids=positions_T[None],
            attention_mask=ids_T.new_empty(1, 1, 1, 1, dtype=torch.bool),  # of four axes: transformers makes no other
            use_cache=False,
            attend=attend,
            recur=getattr(attend, "recur", None),
            **({"output_router_logits": True} if self.keeps_router_logits else {}),
            longest=self.config.max_positions if isinstance(attend, _Recorder) else int(positions_T.max()) + 1,
        )
        self.router_logits = tuple(getattr(out, "router_logits", None) or ())
        return select(out.last_hidden_state[0], keep_R)

    def logits(self, hidden_TC: Tensor) -> Tensor:
        logits_TV = self.lm_head(hidden_TC).float()
        divisor, factor, cap = self._head_options()
        if divisor or factor:
            logits_TV = logits_TV * ((factor or 1.0) / (divisor or 1.0))
        return torch.tanh(logits_TV / cap) * cap if cap else logits_TV

    def _head_options(self) -> tuple[float | None, float | None, float | None]:
        names = ("logits_scaling", "logit_scale", "final_logit_softcapping")
        divisor, factor, cap = (getattr(self.network.config, name, None) for name in names)
        return divisor, factor, cap


def _compute_twice(forward: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Compute a layer, and again in the backward pass, instead of keeping what is inside it."""
    if not torch.is_grad_enabled():
        return forward(*arguments, **named)
    return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False, **named)


def describe(hf: Any) -> ModelConfig:
    """Read the sizes of a `PretrainedConfig` of a family that has no file of ours.

    Of a model with other parts, such as one for images, it is the text model, if transformers can load that alone.

    Raises:
        ValueError: the engine would compute the model wrongly, or transformers has no such model.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    text = hf.get_text_config()
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(hf), None)
    return _describe(json.dumps((text if found and found.config_class is type(text) else hf).to_dict(), default=str))


@cache
def _describe(text: str) -> ModelConfig:
    hf = _read_config(text)
    recorder = _Recorder()
    try:
        if hf.get_text_config() is not hf:
            raise ValueError("it has more than a text model")
        check_rope(hf)
        with torch.device("meta"):
            network = _make(hf)
            ids_T = torch.zeros(2, dtype=torch.long)
            AnyDecoder(_sizes(hf, (1, 1, 1)), network)(ids_T, ids_T, recorder)
        if not recorder.states and any(isinstance(module, DeltaNet) for module in network.modules()):
            raise ValueError("its gated delta nets need transformers 5.10 or newer")
        if missing := sorted(set(range(hf.num_hidden_layers)) - recorder.sizes.keys() - recorder.states.keys()):
            raise ValueError(f"layer {missing[0]} does not attend to earlier tokens")
        if len(set(recorder.sizes.values())) != 1 or len(set(recorder.states.values())) > 1:
            raise ValueError("its layers have different heads")
        for layer, kind in enumerate(getattr(hf, "layer_types", None) or ()):
            slides = kind == "sliding_attention" and (
                hf.sliding_window >= hf.max_position_embeddings or recorder.windows[layer]
            )
            if layer not in recorder.states and kind != "full_attention" and not slides:
                raise ValueError(f"layer {layer} is {kind}, which transformers does not hand to its attention")
    except Exception as error:  # transformers raises whatever it trips over
        reason = error if isinstance(error, ValueError) else f"its code in transformers fails with {error!r}"
        raise ValueError(
            f"model_type {hf.model_type!r} is not supported: {reason}. Supported are qwen2, qwen3, llama and the "
            "families of transformers whose layers all attend to earlier tokens: core/engine/README.md"
        ) from error
    states = None
    if recorder.states:  # the same in all layers
        states = StateSizes(tuple(sorted(recorder.states)), *next(iter(recorder.states.values())))  # type: ignore[arg-type]
    return replace(_sizes(hf, next(iter(recorder.sizes.values()))), scored=recorder.scored, states=states)


def _sizes(hf: Any, heads: tuple[int, int, int]) -> ModelConfig:
    used = getattr(hf, "num_experts_per_tok", None) or 1
    width = getattr(hf, "moe_intermediate_size", None) if used > 1 else None
    return ModelConfig(
        vocab_size=hf.vocab_size,
        hidden_size=hf.hidden_size,
        intermediate_size=used * (width or getattr(hf, "intermediate_size", None) or 4 * hf.hidden_size),
        num_layers=hf.num_hidden_layers,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=heads[2],
        rms_norm_eps=0.0,
        # Some configs have another name for their positions, which the attribute knows.
        max_positions=count_positions({**hf.to_dict(), "max_position_embeddings": hf.max_position_embeddings}),
        tie_embeddings=bool(hf.tie_word_embeddings),
        qk_norm=True,  # for the plan of memory, which counts norms
        other=json.dumps(hf.to_dict(), default=str),
    )


def make_empty(config: ModelConfig) -> AnyDecoder:
    """Make the model of a config that `describe` returned, with tensors that have no data."""
    with torch.device("meta"):
        return AnyDecoder(config, _make(_read_config(config.other)))


def _read_config(text: str) -> Any:
    from transformers import AutoConfig

    values = json.loads(text)
    return AutoConfig.for_model(values.pop("model_type"), **values)


def _make(hf: Any) -> Any:
    from transformers import AutoModelForCausalLM

    _register()
    # In bfloat16 the experts of a mixture can be computed without data.
    return AutoModelForCausalLM.from_config(hf, attn_implementation=NAME, dtype=torch.bfloat16)


def load(config: ModelConfig, folder: Path, dtype: torch.dtype, device: torch.device) -> AnyDecoder:
    """Read the model of `folder`.

    Raises:
        CheckpointError: a tensor is missing, left over, or of another shape, or a head is tied that is another matrix.
    """
    from transformers import AutoModelForCausalLM

    _register()
    try:
        with _hide_progress():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation=NAME, output_loading_info=True, local_files_only=True
            )
            network, report = loaded
    except Exception as error:
        raise CheckpointError(f"{folder}: {error}") from error
    for words, names in (("are missing", report["missing_keys"]), ("have no place", report["unexpected_keys"])):
        if names:
            raise CheckpointError(f"{folder}: {len(names)} tensors {words}, the first is {min(names)}")
    model = AnyDecoder(config, network.to(device))
    if config.tie_embeddings and model.lm_head.weight is not network.get_input_embeddings().weight:
        raise CheckpointError(
            f"{folder}: config.json says tie_word_embeddings: true, and the head is another matrix than the embedding. "
            "Set it to false, which keeps the head, or delete the head if it is a leftover"
        )
    return model


def name_tensors(model: AnyDecoder) -> dict[str, Tensor]:
    """Return the tensors that a checkpoint holds: parameters, and buffers such as the biases of a router."""
    saved = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in saved}
    return {**dict(model.named_parameters()), **buffers}


@torch.inference_mode()
def check_forward(model: AnyDecoder, folder: Path) -> None:
    """Compare the logits of some tokens, computed in two parts by the engine's attention, with transformers' own.

    Raises:
        CheckpointError: they differ by more than rounding.
    """
    network, cut = model.network, PROBE // 2 + 1
    ids_T = torch.arange(PROBE, device=model.device) * 7 % model.config.vocab_size
    cache = PagedCache(model.config, PROBE, PROBE, model.dtype, model.device, count_slots(1))
    with _shrink_windows(network):
        parts = []
        for start, end in ((0, cut), (cut, PROBE)):
            positions_T, attend = prepare_step(cache, [], [Span([1], start, end - start)])  # the one page
            parts.append(model(ids_T[start:end], positions_T, attend))
        ours_TV = model.logits(torch.cat(parts))
        network.set_attn_implementation("eager")
        try:
            with _hush():  # it says that kernels for its own layers are missing, which are used here alone
                theirs_TV = network(input_ids=ids_T[None], use_cache=False).logits[0].float()
        finally:
            network.set_attn_implementation(NAME)
    difference = ((ours_TV - theirs_TV).norm() / theirs_TV.norm()).item()
    # Rounding to bfloat16 sends tokens of a mixture to other experts.
    if not difference < (1e-3 if model.dtype == torch.float32 else 0.2):
        raise CheckpointError(
            f"{folder}: model_type {network.config.model_type!r} is not supported: its logits differ from "
            f"transformers' by {difference:.1%}"
        )


@contextmanager
def _shrink_windows(network: Any) -> Iterator[None]:
    """Give every window fewer tokens than the probe has."""
    holders = [part for part in (network.config, *network.modules()) if getattr(part, "sliding_window", None)]
    windows = [part.sliding_window for part in holders]
    try:
        for part in holders:
            part.sliding_window = PROBE // 2
        yield
    finally:
        for part, window in zip(holders, windows, strict=True):
            part.sliding_window = window


def save(model: AnyDecoder, folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write the model with `tensors`, by name, into `folder`, under the names that the family's checkpoints have."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in name_tensors(model).items()} | tensors
    with _hide_progress():
        model.network.save_pretrained(folder, state_dict=tensors, max_shard_size="1000GB")


@contextmanager
def _hide_progress() -> Iterator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def _hush() -> Iterator[None]:
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attend_for)
    AttentionMaskInterface.register(NAME, _make_no_mask)


def _make_no_mask(*_: Any, **__: Any) -> None:
    """Make no mask: `attend` masks by itself."""
