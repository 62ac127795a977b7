"""Holds AgentFlow's prompts: one message with {slots} for each role of the flow.

`official` follows the released prompts (lupantech/AgentFlow, MIT; slime-agentic's are nearly the same) in layout and
field names, and asks for a boxed answer. `released` is those prompts byte for byte (released.py), for released
planners. `compact` has the same inputs in a few tokens, for small models.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml

from agentic.agentflow import released
from agentic.agentflow.formats import Style

SYSTEM: Mapping[Style, str] = {"released": released.SYSTEM}
"""Holds the system message of the roles; without one the chat template decides."""
MESSAGE = "{message}"
"""Asks any other role: the text of a tool or of the grader is the user's message."""


@cache
def read_messages(style: Style) -> Mapping[str, str]:
    """Return the message to each role of the flow."""
    own = yaml.safe_load(Path(__file__).with_name("prompts.yaml").read_text(encoding="utf-8"))
    messages = {**own, "fences": {**own["official"], **own["fences"]}, "released": released.read_messages()}
    return messages[style]
