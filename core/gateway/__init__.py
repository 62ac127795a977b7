"""The gateway puts OpenAI's and Anthropic's protocols in front of a policy and keeps the exact tokens of each session.

Agents that others wrote, in any framework, become methods that way. Import the names below from here. Two submodules
are imported by themselves and need a package of their own: `langchain_model` (langchain-core) and `strands_model`
(strands-agents).
"""

from typing import TYPE_CHECKING

from core.options import open_later

if TYPE_CHECKING:
    from core.gateway.agent import AgentMethod, Command, Endpoint, Outcome, RunAgent, find_program
    from core.gateway.gateway import KEPT_CLOSED, MAX_KEPT_TOKENS, Gateway, serve_gateway
    from core.gateway.history import Answer
    from core.gateway.messages import AgentRequest, GatewayError, WireCall, WireMessage
    from core.gateway.session import FinishedSession, GatewaySession
    from core.gateway.settings import MAX_IDLE_S, History, SessionSettings, list_other_roles

__all__ = [
    "KEPT_CLOSED",
    "MAX_IDLE_S",
    "MAX_KEPT_TOKENS",
    "AgentMethod",
    "AgentRequest",
    "Answer",
    "Command",
    "Endpoint",
    "FinishedSession",
    "Gateway",
    "GatewayError",
    "GatewaySession",
    "History",
    "Outcome",
    "RunAgent",
    "SessionSettings",
    "WireCall",
    "WireMessage",
    "find_program",
    "list_other_roles",
    "serve_gateway",
]
__getattr__ = open_later(__name__)
