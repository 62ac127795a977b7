"""Runs any command line as the agent: Claude Code, Codex, mini-swe-agent, or a script of yours.

The program runs in the workspace, with the repository as its folder. The one thing that it can connect to is a port of
127.0.0.1, where a gateway answers it as OpenAI or Anthropic would. The gateway has this rollout's session and no other,
and keeps the exact tokens.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

from agentic.coding.config import CodingSection, CommandSection
from core import gateway
from core.policy.base import Roles
from core.rollout.method import RolloutError
from core.sandbox.workspace import CommandResult, RepositoryWorkspace, WorkspaceError, shorten
from core.text.tokenizer import Tokenizer
from core.types import CALLS, Sampling, Task, Turn

End = Literal[
    "answered", "cut_answer", "turn_limit", "time_limit", "context_limit", "output_limit", "agent_failed",
    "workspace_lost",
]  # fmt: skip
"""Names how an agent ends. All but `answered` give the status `truncated`; what is left of its work is graded."""

NOT_OUR_AGENT = ("refused_policy_", "refused_rollout_", "refused_aborted", "refused_internal", "other_role_full")
"""Begins the counters of requests that the gateway could not answer, through no fault of the agent."""

QUESTION_FILE = "/tmp/question.txt"
"""Holds the problem in the workspace, for a program that reads it there."""

MAX_LINE = (1 << 17) - 1
"""Bounds the bytes of the shell command: it is an argument of the shell, and Linux takes no longer one."""

GRACE_S = 5.0
"""Bounds the time of a program after it was refused a turn for having had all. Many wait and ask again."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Holds what an agent did: its turns, how it ended, what was counted, and what a reader should see."""

    end: End
    turns: tuple[Turn, ...]
    counts: Mapping[str, int]
    log: Mapping[str, Any] = field(default_factory=dict)


async def run_command(
    config: CodingSection,
    tokenizer: Tokenizer,
    workspace: RepositoryWorkspace,
    task: Task,
    statement: str,
    roles: Roles,
    sampling: Sampling,
) -> Attempt:
    """Run the program of `config.command` in a workspace that `serves`, in a session of its own.

    Raises:
        RolloutError: its command is too long, or it or the engine failed: this says nothing about the policy.
        WorkspaceError: the file of the question could not be written.
    """
    command = config.command
    assert command is not None
    assert workspace.listener is not None
    settings = gateway.SessionSettings(
        max_context=config.context_tokens,
        max_turns=config.max_turns,
        model_roles=command.model_roles,
    )
    server = gateway.Gateway({}, tokenizer, settings)
    key = uuid4().hex
    async with gateway.serve_gateway(server, workspace.listener) as url:
        session = server.open_rollout(key, task, roles, sampling, config.max_tokens)
        result: CommandResult | None = None
        watch = asyncio.create_task(_stop_at_limit(session, workspace))
        try:
            line = write_line(command, statement, gateway.Endpoint(f"{url}/s/{key}", key))
            if (size := len(line.encode(errors="surrogatepass"))) > MAX_LINE:
                fix = "write {question_file} in place of {statement}, and let the program read that file"
                raise RolloutError("agent_failed", f"the command has {size} bytes, of at most {MAX_LINE}; {fix}")
            if any("{question_file}" in each for each in (*command.arguments, *command.environment.values())):
                await workspace.put(QUESTION_FILE, statement.encode(errors="surrogatepass"))
            result = await workspace.exec(line, timeout_s=config.time_limit_s, output_bytes=command.output_bytes)
        except WorkspaceError as error:
            if error.kind != "lost":
                raise
        finally:
            watch.cancel()
            finished = session.finished or await server.finish_session(key)  # the program may post to /finish itself
    if session.failure is not None:  # whatever the program made of it
        raise RolloutError(session.failure[0], f"the program's last request got no answer: {session.failure[1]}")
    end = find_end(result, finished.counters, session.reached_limit)
    output, errors = (_tail(result.stdout), _tail(result.stderr)) if result else ("", "")
    refused = [name for name in finished.counters if name.startswith(NOT_OUR_AGENT)]
    if (end == "agent_failed" and refused) or (end in ("agent_failed", "answered") and not finished.turns):
        code = result.exit_code if result else 0
        raise RolloutError(
            "agent_failed",
            f"{command.arguments[0]} ended with exit code {code} after {len(finished.turns)} turns "
            f"({', '.join(refused) or 'no request failed'}): {errors or output}",
        )
    log = {"output": output, "errors": errors, "wire": finished.events}
    counts = {**finished.counters, **{f"{CALLS}{name}": count for name, count in finished.calls.items()}}
    return Attempt(end, finished.turns, counts, log)


async def _stop_at_limit(session: gateway.GatewaySession, workspace: RepositoryWorkspace) -> None:
    """End a program that has had its turns and asks on, or waits."""
    while not session.counters["refused_turn_limit"]:
        await asyncio.sleep(0.2)
    await asyncio.sleep(GRACE_S)
    await workspace.interrupt()


def write_line(command: CommandSection, statement: str, endpoint: gateway.Endpoint) -> str:
    """Write the shell command that starts the program."""
    values = {
        "statement": statement,
        "question_file": QUESTION_FILE,
        "openai_url": endpoint.openai_url,
        "anthropic_url": endpoint.anthropic_url,
        "key": endpoint.api_key,
    }

    def fill(text: str) -> str:  # in one pass: a statement may hold such names itself
        return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), text)

    environment = endpoint.environment() | {name: fill(value) for name, value in command.environment.items()}
    words = ["env", *(f"{name}={value}" for name, value in environment.items()), *map(fill, command.arguments)]
    return f"exec {shlex.join(words)}"


def find_end(result: CommandResult | None, counters: Mapping[str, int], at_limit: bool) -> End:
    """Say how a program ended, maybe `at_limit` of its turns or context; None stands for a workspace that is gone."""
    if result is None:
        return "workspace_lost"
    # Some programs ask on at a limit of turns until they are stopped, and others end with 0, as at a full context.
    if counters.get("refused_turn_limit"):
        return "turn_limit"
    if result.reason != "exit":
        return "time_limit" if result.reason == "timeout" else "output_limit"
    if at_limit:
        return "context_limit"
    return "answered" if result.exit_code == 0 else "agent_failed"


def _tail(output: bytes) -> str:
    return shorten(output.decode(errors="replace"), 4000)
