"""Says how the sessions of a gateway answer. A recipe holds these settings, so nothing here opens a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

History = Literal["sampled", "template"]
"""Says which thoughts of earlier answers the next prompt keeps: all that were sampled, or those the template shows."""

MAX_IDLE_S = 3600.0
"""Bounds by default the seconds between two requests of a session that a request opened: tools may run for long."""

FROZEN = "frozen:"
"""Begins the model name of a request to a role that is never trained, such as `frozen:judge`."""


def list_other_roles(model_roles: Mapping[str, str]) -> tuple[str, ...]:
    """Return the roles that model names are mapped to, without `policy`."""
    return tuple(sorted({role.removeprefix(FROZEN) for role in model_roles.values()} - {"policy"}))


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Says how the sessions of a gateway answer.

    `max_context` bounds prompt and completion of one call together. `max_turns` bounds the answers of a session: one
    more is refused, with a status after which clients end. So is a request after answers that hold more than
    `max_tool_calls` calls. `model_roles` maps patterns of model names to roles, the first that fits counts; a name that
    fits none asks the role `policy`, unless it begins with `frozen:`. Only answers of `policy` are trained;
    `frozen:policy` asks it untrained. A gateway that opens sessions on request finishes one that nobody asked anything
    for `max_idle_s` seconds.
    """

    max_context: int
    max_turns: int | None = None
    max_tool_calls: int | None = None
    history: History = "sampled"
    model_roles: Mapping[str, str] = field(default_factory=dict)
    max_idle_s: float = MAX_IDLE_S

    def find_role(self, model: str) -> tuple[str, bool]:
        """Return the role that a model name asks, and whether its answers may be trained."""
        mapped = next((role for pattern, role in self.model_roles.items() if fnmatchcase(model, pattern)), None)
        asked = mapped or (model if model.startswith(FROZEN) else "policy")
        frozen = asked.startswith(FROZEN) or model.startswith(FROZEN)
        role = asked.removeprefix(FROZEN)
        return role, role == "policy" and not frozen
