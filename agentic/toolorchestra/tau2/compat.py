"""Reproduces ToolOrchestra's own variant of tau2 (protocol `toolorchestra-compat`), to compare with its numbers.

Source: NVlabs/ToolOrchestra, evaluation/tau2-bench/tau2/utils/llm_utils.py. The tool that hands the user to a human is
removed. The policy's passages about it are replaced by one about experts, and the format is spelled out. The source
lists 26 passages. Five of them occur in retail, airline and telecom; two of the others repeat the first.

Departures: every expert gets tau2's own policy. In the source gpt-5 and gpt-5-mini get it, and in its training code all
experts do, but its evaluation sends Qwen3-32B the orchestrator's messages. We append no sentence that invites gpt-5 to
doubt.
"""

from __future__ import annotations

from dataclasses import replace

from agentic.toolorchestra.environment import Start

TRANSFER = "transfer_to_human_agents"

PASSAGES = (
    "You should transfer the user to a human agent if and only if the request cannot be handled within the scope of "
    "your actions. To transfer, first make a tool call to transfer_to_human_agents, and then send the message 'YOU ARE "
    "BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.' to the user.\n",
    "You should escalate to a human agent if and only if the request cannot be handled within the scope of your "
    "actions. To escalate, use the tool call transfer_to_human_agents\n\nYou should try your best to resolve the issue "
    "before escalating the user to a human agent.\n",
    "You should try your best to resolve the issue for the user before transferring the user to a human agent.",
    "Make sure you try all the possible ways to resolve the user's issue before transferring to a human agent.\n",
    "Make sure you try all the relevant resolution steps before transferring the user to a human agent.\n",
)

EXPERTS = (
    "You should transfer the user to an expert if you are not confident about how to reply or which tool to use. To "
    "transfer, first make a tool call to call_expert, and then choose an expert based on the task difficulty, i.e. "
    "strong expert on tricky task, and weaker expert on simpler task. Think carefully about whether you are confident "
    "to meet user expectation, or call an appropriate expert based on both expert cost and performance."
)

FORMAT = (
    "  You are dedicated to provide the best service. Wrap thinking process between <think> </think>, message between "
    "<message> </message> and the tool call between <tool_call> </tool_call> ."
)


def rewrite(start: Start) -> Start:
    """Rewrite what the orchestrator is given under this protocol; experts keep the policy and all tools."""
    policy = start.policy
    for passage in PASSAGES:
        policy = policy.replace(passage, EXPERTS)
    tools = [tool for tool in start.tools if tool.name != TRANSFER]
    return replace(start, policy=policy + FORMAT, tools=tools, plain=start)
