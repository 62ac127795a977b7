"""Defines the project's words as frozen dataclasses: Task, Sampling, Completion, Turn, Trajectory, Row.

Invariant: a Turn holds the very ids that went to the policy and the very ids that came back, and these are what is
trained. A method may read a completion as text and write that text into a later prompt; it never becomes a target.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort"]
Status = Literal["completed", "truncated", "failed"]
LossAgg = Literal["rollout", "rollout_turn", "turn", "token", "constant"]
"""Names what counts as one unit in the loss of a batch; core/algorithms/aggregate.py explains each."""
POLICY = "policy"
"""Names the policy that every recipe trains; roles may be others (core/train/learner.py)."""
RowUnit = Literal["turn", "segment"]
"""Names what becomes one training row."""
AdvEstimator = Literal[
    "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "turn_grpo", "gigpo", "gae"
]
"""Names how rewards become advantages; core/algorithms/advantages.py explains each."""
Advantage = float | tuple[float, ...]
"""Holds the advantage of some tokens: one number for all of them, or one for each."""

Fault = Literal["bad_request", "too_long", "engine", "unavailable", "timeout", "bad_reply"]
"""Names why a call gave nothing; the same fault has the same name whatever is behind the policy or the service.

`bad_request`: the call can never succeed as it is (HTTP 4xx, but for those below).
`too_long`: the prompt and the completion that it asks for do not fit the model's context (an HTTP 400 that says so).
`engine`: the engine failed during the call (HTTP 5xx, but for those below).
`unavailable`: nobody takes calls now, or the connection was lost: a closed policy, HTTP 408, 429, 502 to 504.
`timeout`: there was no reply within the caller's own limit.
`bad_reply`: the reply is not JSON, lacks a field, or contradicts itself.
"""


CALLS = "calls_"
"""Begins the name of a metric that counts the calls of one tool or expert, such as `calls_search`."""

FAILED_CALLS = "failed_calls"
"""Names the metric that counts those of these calls that gave nothing but an error."""

COUNTED_METRICS = ("drift", "own_faults")
"""Names the metrics that count events: they are summed over rollouts, and all others are averaged."""
PARTIAL_METRICS = ("reference_kl", "answer_logprob", "environment_")
"""Begin the names of metrics whose mean is over the rollouts that have them; of others, a missing one is 0."""


class ServiceError(RuntimeError):
    """Reports a call that gave nothing; `kind` is its name in the failure counts."""

    def __init__(self, kind: Fault, message: str):
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Task:
    """Holds one record of a data set.

    `task_id` is unique within its data set. `answers` are all accepted answers. `context` is the text that the question
    is about (empty for tasks without one). `earlier_messages` stand before the question: a system message and earlier
    turns, as {role, content}.
    """

    task_id: str
    question: str
    answers: tuple[str, ...]
    context: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    earlier_messages: tuple[Mapping[str, str], ...] = ()

    @property
    def messages(self) -> list[Mapping[str, str]]:
        """The whole conversation, which the question ends."""
        return [*self.earlier_messages, {"role": "user", "content": self.question}]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Says how to sample one completion. `temperature` 0 is greedy; `top_k` -1 and `top_p` 1 switch the filters off.

    A completion ends with the first of `stop_token_ids`, or with the token that completes one of the texts in `stop`;
    it keeps that token. Log-probs belong to the distribution at `temperature`, before `top_k` and `top_p` cut it
    (SGLang's convention). `top_p` is a share of it too; vLLM's is one of what `top_k` leaves.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    frequency_penalty: float = 0.0
    """Lowers the logit of a token by this much for each time that it was sampled in this completion. SGLang's servers
    know it, our own engine refuses it: its log-probs would belong to no distribution that training knows."""


def derive_seed(*parts: object) -> int:
    """Derive a 63-bit seed from values with a stable text; it is the same on every machine and in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True, slots=True)
class Completion:
    """Holds what the policy returned for one call. `token_ids` includes the token that it stopped at, if any.

    The weights of `weight_version` sampled its last token. When they changed meanwhile, `earlier_versions` says in
    order which weights sampled the tokens before, as pairs of version and number of tokens.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    weight_version: str = "0"
    cached_tokens: int | None = None  # of the prompt, not computed anew; None where the engine does not tell
    earlier_versions: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(f"completion has {len(self.token_ids)} tokens but {len(self.logprobs)} log-probs")

    def count_versions(self) -> list[tuple[str, int]]:
        """Return every version of the weights with the number of tokens that it sampled, in order."""
        earlier = sum(count for _, count in self.earlier_versions)
        return [*self.earlier_versions, (self.weight_version, len(self.token_ids) - earlier)]


@dataclass(frozen=True, slots=True)
class Turn:
    """Holds one call of one role. `trained` says whether the completion's tokens get a gradient."""

    role: str
    prompt_ids: tuple[int, ...]
    completion: Completion
    trained: bool
    seconds: tuple[float, float] | None = field(default=None, compare=False)
    """Holds when the call began and ended, in seconds since its rollout began; None where no clock was read."""
    reward: float | None = None
    """Holds what this turn alone earned, for `turn_grpo`, `gigpo` and `gae`. `Trajectory.reward` is without it."""
    state: str | None = None
    """Names the state of the environment before this turn, for `gigpo`; None stands for the prompt."""
    advantage: Advantage | None = None
    """Holds what the method itself says, once or for each sampled token, of a rollout that no filter leaves out."""
    policy: str = POLICY
    """Names the trained policy that sampled the turn."""

    def __post_init__(self) -> None:
        own = self.advantage if isinstance(self.advantage, tuple) else (self.advantage,)
        if not all(math.isfinite(value or 0.0) for value in (self.reward, *own)):
            raise ValueError(f"turn of {self.role}: reward {self.reward} and advantage {self.advantage} must be finite")
        if isinstance(self.advantage, tuple) and len(self.advantage) != len(self.completion.token_ids):
            raise ValueError(
                f"turn has {len(self.completion.token_ids)} sampled tokens, but its advantage has "
                f"{len(own)} numbers; give one for each token, or one for all"
            )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Holds one rollout of one task. When `status` is `failed`, `failure` names the reason, and there is no reward.

    A `truncated` one may have a `failure` too: one that the policy is to blame for, with reward 0.

    `metrics` are numbers to average over rollouts (but see COUNTED_METRICS and PARTIAL_METRICS); `log` is free-form and
    is only shown.
    """

    task_id: str
    turns: tuple[Turn, ...]
    status: Status = "completed"
    reward: float | None = None
    failure: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    log: Mapping[str, Any] = field(default_factory=dict)


Group = Sequence[Trajectory]
"""Holds the trajectories of one task, whose rewards are compared."""
EDGE = "edge:"
"""Begins the name of an event in which an agent says how its requests belong together."""


@dataclass(frozen=True, slots=True)
class Row:
    """Holds one training sequence: `tokens` = prompt + response, and for each response token its mask and log-prob.

    `advantage` is that of all trained tokens, or has one number for each response token.
    `rollout_id` says which rollout the row belongs to: a rollout counts once however many rows it became. `turns` are
    the places of its turns in that rollout. `policy` names the one that sampled them, and that they train.
    Lengths: len(loss_mask) == len(logprobs) == number of response tokens <= len(tokens) - 1.
    """

    tokens: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: Advantage
    rollout_id: int
    turns: tuple[int, ...] = field(default=(), compare=False)  # the rows that a backend hands back lack them
    policy: str = POLICY

    def __post_init__(self) -> None:
        if len(self.loss_mask) != len(self.logprobs):
            raise ValueError(f"row has {len(self.loss_mask)} mask entries but {len(self.logprobs)} log-probs")
        if len(self.loss_mask) >= len(self.tokens):
            raise ValueError("row has no prompt token before its response")
        if isinstance(self.advantage, tuple) and len(self.advantage) != len(self.loss_mask):
            raise ValueError(f"row has {len(self.loss_mask)} mask entries but {len(self.advantage)} advantages")

    @property
    def trained_tokens(self) -> int:
        return sum(self.loss_mask)

    @property
    def advantages(self) -> tuple[float, ...]:
        """Return the advantage of each response token."""
        return self.advantage if isinstance(self.advantage, tuple) else (self.advantage,) * len(self.loss_mask)
