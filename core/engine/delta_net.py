"""The gated delta rule of Qwen3.5 and Qwen3-Next: layers that keep a state of one size instead of keys and values.

A head's memory M is a matrix [D, E]. A token with key k, value v, decay g <= 0 and strength b changes it, and its query
q reads it (Gated Delta Networks, arXiv 2412.06464, equation 10):

    M = exp(g) M;    M = M + k (b (v - k M));    out = q M

Before the rule, a short causal convolution mixes each channel of queries, keys and values with those of the W tokens
before. Tensor suffixes: core/__init__.py; here H counts the value heads, C the channels, E the width of a value.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from core.engine.states import CHUNK, Recur, State


class DeltaNet(nn.Module):
    """Computes a gated delta net of transformers, whose weights it has, for packed tokens.

    `replace_delta_net` makes an object of transformers one of this class.
    """

    layer_idx: int
    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    key_dim: int
    value_dim: int
    A_log: Tensor
    dt_bias: Tensor
    conv1d: nn.Conv1d
    norm: nn.Module
    out_proj: nn.Module
    in_proj_qkv: nn.Module
    in_proj_z: nn.Module
    in_proj_b: nn.Module
    in_proj_a: nn.Module
    in_proj_qkvz: nn.Module
    in_proj_ba: nn.Module
    fix_query_key_value_ordering: Any

    def forward(self, hidden_states: Tensor, recur: Recur | None = None, **other: Any) -> Tensor:
        if recur is None:  # transformers' own forward, with which a loaded model is compared
            return cast(Tensor, super().forward(hidden_states, **other))
        x_TC = hidden_states[0]
        qkv_TC, z_TF, b_TH, a_TH = self._project(x_TC)
        decay_TH = -self.A_log.float().exp() * F.softplus(a_TH.float() + self.dt_bias)
        out_THE = recur(self.layer_idx, self.advance, qkv_TC, decay_TH, b_TH.sigmoid().float())
        # The norm also multiplies by the gate z.
        normed = self.norm(out_THE.to(x_TC.dtype).flatten(0, 1), z_TF.reshape(-1, self.head_v_dim))
        return cast(Tensor, self.out_proj(normed.view(len(x_TC), -1))[None])

    def _project(self, x_TC: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if hasattr(self, "in_proj_qkv"):  # Qwen3.5
            return self.in_proj_qkv(x_TC), self.in_proj_z(x_TC), self.in_proj_b(x_TC), self.in_proj_a(x_TC)
        parts = self.fix_query_key_value_ordering(self.in_proj_qkvz(x_TC)[None], self.in_proj_ba(x_TC)[None])
        q_TF, k_TF, v_TF, z_TF, b_TH, a_TH = (part[0].flatten(1) for part in parts)
        return torch.cat((q_TF, k_TF, v_TF), dim=-1), z_TF, b_TH, a_TH

    def advance(
        self, state: State | None, lengths_N: Tensor, qkv_NLC: Tensor, decay_NLH: Tensor, beta_NLH: Tensor
    ) -> tuple[Tensor, State]:
        """Feed N sequences, of which nothing or `state` is known, up to L more tokens: see `Advance`."""
        count, length, channels = qkv_NLC.shape
        weight_CX = self.conv1d.weight[:, 0].float()
        width = weight_CX.shape[1] - 1
        if state is None:
            memory_NHDE = decay_NLH.new_zeros(count, decay_NLH.shape[2], self.head_k_dim, self.head_v_dim)
            state = State(qkv_NLC.new_zeros(count, width, channels), memory_NHDE)
        inputs_NXC = torch.cat([state.recent_NWC, qkv_NLC], dim=1)  # token l stands at W + l
        # Tap by tap, so that a sequence is rounded alike whatever comes with it.
        taps = (inputs_NXC[:, tap : tap + length].float() * weight_CX[:, tap] for tap in range(width + 1))
        mixed_NLC = F.silu(sum(taps, torch.zeros((), device=qkv_NLC.device)))
        # The inputs of the last W tokens of each sequence.
        ends = lengths_N[:, None] + torch.arange(width, device=lengths_N.device)
        recent_NWC = inputs_NXC[torch.arange(count, device=ends.device)[:, None], ends]
        heads = mixed_NLC.split([self.key_dim, self.key_dim, self.value_dim], dim=-1)
        q, k, v_NLHE = (x.unflatten(-1, (-1, size)) for x, size in zip(heads, self._head_sizes(), strict=True))
        shared = self.num_v_heads // self.num_k_heads
        q_NLHD, k_NLHD = (_normalize(x).repeat_interleave(shared, dim=2) for x in (q, k))
        q_NLHD = q_NLHD * self.head_k_dim**-0.5
        tokens = q_NLHD, k_NLHD, v_NLHE, decay_NLH, beta_NLH
        out_NLHE, memory_NHDE = apply_delta_rule(*tokens, state.memory_NHDE)
        return out_NLHE, State(recent_NWC, memory_NHDE)

    def _head_sizes(self) -> tuple[int, int, int]:
        return self.head_k_dim, self.head_k_dim, self.head_v_dim


def replace_delta_net(module: nn.Module) -> None:
    """Make `module` a DeltaNet if it is a gated delta net of transformers."""
    kind = type(module)
    if kind.__name__.endswith("GatedDeltaNet") and (hasattr(module, "in_proj_qkv") or hasattr(module, "in_proj_qkvz")):
        module.__class__ = type(kind.__name__, (DeltaNet, kind), {})


def _normalize(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def apply_delta_rule(
    q_NLHD: Tensor,
    k_NLHD: Tensor,
    v_NLHE: Tensor,
    decay_NLH: Tensor,
    beta_NLH: Tensor,
    memory_NHDE: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return what the queries read, [N, L, H, E], and the memory after the last token, all in float32.

    A token whose decay and strength are 0 changes nothing.
    """
    # Meta tensors, of a forward without data, know no autocast.
    with nullcontext() if q_NLHD.is_meta else torch.autocast(q_NLHD.device.type, enabled=False):
        apply = _apply_once if q_NLHD.shape[1] == 1 else _apply_in_chunks
        return apply(q_NLHD, k_NLHD, v_NLHE, decay_NLH, beta_NLH, memory_NHDE)


def _apply_once(
    q_N1HD: Tensor, k_N1HD: Tensor, v_N1HE: Tensor, decay_N1H: Tensor, beta_N1H: Tensor, memory_NHDE: Tensor
) -> tuple[Tensor, Tensor]:
    q_NH1D, k_NH1D, v_NH1E = (x.transpose(1, 2) for x in (q_N1HD, k_N1HD, v_N1HE))
    decay_NH11, beta_NH11 = (x.transpose(1, 2)[..., None] for x in (decay_N1H, beta_N1H))
    memory_NHDE = memory_NHDE * decay_NH11.exp()
    change_NH1E = (v_NH1E - k_NH1D @ memory_NHDE) * beta_NH11
    memory_NHDE = memory_NHDE + k_NH1D.transpose(-1, -2) * change_NH1E
    return (q_NH1D @ memory_NHDE).transpose(1, 2), memory_NHDE


def _apply_in_chunks(
    q_NLHD: Tensor, k_NLHD: Tensor, v_NLHE: Tensor, decay_NLH: Tensor, beta_NLH: Tensor, memory_NHDE: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the rule to `CHUNK` tokens at a time: section 3.3 of the paper. X and Y are tokens of one chunk.

    Within a chunk the change of a token depends on those before it: a triangular system, solved for all at once.
    """
    length, padding = q_NLHD.shape[1], -q_NLHD.shape[1] % CHUNK

    def cut(x_NLHF: Tensor) -> Tensor:  # [N, H, chunks, X, F]
        return F.pad(x_NLHF, (0, 0, 0, 0, 0, padding)).unflatten(1, (-1, CHUNK)).permute(0, 3, 1, 2, 4)

    q, k, v = cut(q_NLHD), cut(k_NLHD), cut(v_NLHE)
    decay, beta = cut(decay_NLH[..., None]).cumsum(dim=3), cut(beta_NLH[..., None])
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    # What is left at token x of a change that token y made.
    left_XY = (decay - decay.transpose(-1, -2)).masked_fill(later, -torch.inf).exp()
    system_XY = (k * beta) @ k.transpose(-1, -2) * left_XY  # the solver takes its diagonal for ones
    sides = torch.cat([v * beta, k * beta * decay.exp()], dim=-1)
    solved = torch.linalg.solve_triangular(system_XY, sides, upper=False, unitriangular=True)
    values, reads = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    scores_XY = q @ k.transpose(-1, -2) * left_XY
    q, last = q * decay.exp(), decay[..., -1:, :]
    k_FX = (k * (last - decay).exp()).transpose(-1, -2)
    outputs = []
    for chunk in range(q.shape[2]):
        changes_XE = values[:, :, chunk] - reads[:, :, chunk] @ memory_NHDE
        outputs.append(q[:, :, chunk] @ memory_NHDE + scores_XY[:, :, chunk] @ changes_XE)
        memory_NHDE = memory_NHDE * last[:, :, chunk].exp() + k_FX[:, :, chunk] @ changes_XE
    return torch.cat(outputs, dim=2)[:, :, :length].transpose(1, 2), memory_NHDE
