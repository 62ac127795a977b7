"""Coding: an agent repairs a repository in a sandbox, and the task's tests decide its reward.

Every rollout opens the repository in a workspace of its own. The agent calls tools until it answers without a call or
meets a limit. What it changed leaves the workspace as a git diff, and is graded in another, clean one (grading.py).

Follows slime's examples/coding_agent_rl in its records and in grading a diff in a second sandbox. There, Claude Code
or Codex is the agent, and E2B the sandbox. Here, the agent is the loop below or any command line (command.py), and the
sandbox is a process or Docker.

A sub-agent (`delegate`) is a branch of the conversation, and a compaction cuts it. Both become segments of the same
rollout, so each sampled token is trained once and the rollout counts once.

Run:  bash agentic/coding/run.sh                            # tiny: two CPU cores, minutes
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from agentic.coding.command import Attempt, End, run_command
from agentic.coding.config import PRESETS, CodingRecipe, CodingSection, CommandSection
from agentic.coding.grading import VERIFIER_FOLDERS, DiffGrade, grade, is_protected
from agentic.coding.prompts import (
    BASH,
    DELEGATE,
    FENCE_INSTRUCTIONS,
    INSTRUCTIONS,
    REPAIR,
    REWRITE_INSTRUCTIONS,
    SCHEMAS,
    SUBAGENT,
    SUMMARY_REQUEST,
    TASK,
    WORK,
)
from agentic.coding.records import RecordError, RepositoryTask, check_task, read_task
from agentic.coding.remember import Remembered
from agentic.coding.tools import number_lines, run_tool
from core.config import RecipeError
from core.gateway import list_other_roles
from core.policy.base import Policy, Roles
from core.rewards.answers import strip_thoughts
from core.rollout.conversation import Conversation
from core.rollout.method import Method, MethodSpec, RolloutError, find_hook
from core.rollout.turns import begin_turns
from core.sandbox import workspace as workspaces
from core.sandbox.workspace import (
    PreparedRepository,
    RepositoryWorkspace,
    WorkspaceError,
    WorkspaceUnavailable,
    check_paths,
)
from core.text.call_formats import need_format, read_reply
from core.text.conversation import Message, Renderer
from core.text.programs import OUTPUT, PYTHON, SHELL, find_last_fence
from core.text.tokenizer import Tokenizer
from core.text.tool_calls import ToolCall, ToolSchema, check_call
from core.types import CALLS, FAILED_CALLS, Completion, Sampling, Task, Trajectory

PREPARED = 256
"""Limits the prepared repositories that are kept. It changes speed, not results."""
PREPARED_BYTES = 1 << 18
"""Limits each of them."""


class CodingAgent(Method):
    """Runs the method. Its one role, `policy`, writes the turns `act`, `subagent` and `summary`."""

    def __init__(self, recipe: CodingRecipe, tokenizer: Tokenizer):
        self.config = recipe.coding
        self.tokenizer = tokenizer
        self.renderer = Renderer(tokenizer)
        command = self.config.command
        if command is not None:
            self.needs = list_other_roles(command.model_roles)
            try:
                check_paths(command.paths, "/testbed")
            except ValueError as error:
                raise RecipeError(f"coding.command.paths: {error}") from error
        self.calls = self.config.format == "calls"
        self.call_format = need_format("coding.format", tokenizer) if self.calls else None
        self.sandbox = workspaces.choose_backend() if self.config.backend == "auto" else self.config.backend
        self.grades: Remembered[DiffGrade] = Remembered(self.config.remember)
        self.prepared: Remembered[PreparedRepository] = Remembered(PREPARED)

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Let the agent work on the task's repository, and grade what it changed.

        Raises:
            RolloutError: the record is broken (`bad_task`), no sandbox can be had (`workspace`), or a command failed.
        """
        try:
            repository = read_task(task)
        except RecordError as error:
            raise RolloutError("bad_task", f"task {task.task_id}: {error}") from error
        command = self.config.command
        async with self.make_workspace(repository, command) as workspace:
            await self.start(workspace, repository)
            if command is None:
                source = find_source(repository) if self.config.format == "rewrite" else None
                opening = await self.describe(workspace, repository) if source is None else self.show_file(repository)
                work = await self.run_loop(workspace, opening, roles["policy"], sampling, source)
            else:
                statement = repository.statement
                work = await run_command(self.config, self.tokenizer, workspace, task, statement, roles, sampling)
            graded: DiffGrade | None = None
            remembered = False
            try:
                diff = await workspace.diff()
            except WorkspaceError as error:  # by the agent's doing: the workspace was fine before
                diff, graded = b"", DiffGrade("huge_diff" if error.kind == "huge_diff" else "no_diff", str(error))
        if graded is None:
            graded, remembered = await self.grade(task, repository, diff)
        return Trajectory(
            task_id=task.task_id,
            turns=work.turns,
            status="completed" if work.end == "answered" else "truncated",
            reward=graded.reward,
            metrics={
                "turns": len(work.turns),
                "diff_bytes": len(diff),
                "grade_remembered": float(remembered),
                f"end_{work.end}": 1.0,
                f"verdict_{graded.verdict}": 1.0,
                **{name: float(count) for name, count in work.counts.items()},
            },
            log={
                "end": work.end,
                "verdict": graded.verdict,
                "detail": graded.detail,
                "diff": diff.decode(errors="replace"),
                **work.log,
            },
        )

    async def run_loop(
        self, workspace: RepositoryWorkspace, opening: Message, policy: Policy, sampling: Sampling, source: str | None
    ) -> Attempt:
        """Let our own loop work in a workspace; a reply replaces the file `source`, if there is one."""
        turns = begin_turns(sampling, self.tokenizer, (OUTPUT,) if self.config.format == "fences" else ())
        shown = [tool.to_openai() for tool in self.list_tools()] if self.calls else []
        chat = Conversation(policy, self.renderer, turns, [opening], shown)
        loop = Loop(self, workspace, time.monotonic() + self.config.time_limit_s, source)
        end: End = "workspace_lost"
        with contextlib.suppress(WorkspaceError):
            end = await loop.work(chat, "act", self.config.max_turns)
        return Attempt(end, tuple(turns.recorded), loop.counts)

    def make_workspace(self, repository: RepositoryTask, command: CommandSection | None = None) -> RepositoryWorkspace:
        """Return a workspace for the task, not yet started; one for a `command` reaches a port and the command's paths.

        Raises:
            RolloutError: there is none (kind `workspace`).
        """
        config = self.config
        try:
            if config.backend == "docker":
                return workspaces.DockerWorkspace(repository.image, config.workspace, repository.workdir)
            limits, paths = (config.workspace, ()) if command is None else (command.workspace, command.paths)
            serves, folders = command is not None, VERIFIER_FOLDERS if repository.verifier else ()
            where = repository.workdir, config.backend
            return workspaces.IsolatedWorkspace(limits, *where, paths=paths, serves=serves, folders=folders)
        except (WorkspaceUnavailable, ValueError) as error:
            raise RolloutError("workspace", str(error)) from error

    async def start(self, workspace: RepositoryWorkspace, repository: RepositoryTask) -> None:
        """Start a workspace and prepare the repository in it. Raises RolloutError (`workspace`) if that cannot be."""
        try:
            if not self.brings_all(repository):
                await workspace.start(repository.files, repository.pre_commands)
                return
            files = frozenset(repository.files.items())
            async with self.prepared.hold(files) as prepared:
                if prepared is None:
                    await workspace.start(repository.files)
                    if (made := await workspace.pack(PREPARED_BYTES)) is not None:
                        self.prepared.put(files, made)
            if prepared is not None:
                await workspace.start_from(prepared)
        except (WorkspaceUnavailable, WorkspaceError) as error:
            raise RolloutError("workspace", str(error)) from error

    def brings_all(self, repository: RepositoryTask) -> bool:
        """Return whether the record's files are the whole repository: no image and no command adds to them."""
        return bool(repository.files) and not repository.pre_commands and self.config.backend != "docker"

    async def describe(self, workspace: RepositoryWorkspace, repository: RepositoryTask) -> Message:
        """Return the first message, which states the problem; with `show_source` it holds the numbered source too.

        Raises:
            RolloutError: the source cannot be read (kind `workspace`).
        """
        instructions = INSTRUCTIONS if self.calls else FENCE_INSTRUCTIONS
        if repository.verifier:
            instructions = instructions.replace(REPAIR, WORK)
        parts = [TASK.format(statement=repository.statement), instructions]
        try:
            source = await self.read_source(workspace, repository) if self.config.show_source else {}
        except WorkspaceError as error:
            raise RolloutError("workspace", str(error)) from error
        for path, content in source.items():
            if content:
                parts.append(f"{path}\n{number_lines(content.decode(errors='replace'))}")
        return self.renderer.message("user", workspaces.shorten("".join(parts), 4 * self.config.output_chars))

    def show_file(self, repository: RepositoryTask) -> Message:
        """Return the first message of the format `rewrite`: the problem, and the one source file in a fence.

        Raises:
            RolloutError: as `find_source`.
        """
        source = repository.files[find_source(repository)].decode(errors="replace").removesuffix("\n")
        fence = f"```python\n{source}\n```\n"
        return self.renderer.message("user", TASK.format(statement=repository.statement), fence, REWRITE_INSTRUCTIONS)

    async def read_source(self, workspace: RepositoryWorkspace, repository: RepositoryTask) -> dict[str, bytes]:
        """Return the repository's Python files without its tests, in git's order."""
        if self.brings_all(repository):
            return {path: repository.files[path] for path in list_sources(repository)}
        timeout_s = self.config.workspace.start_timeout_s
        listed = await workspace.exec("git ls-files -z '*.py'", timeout_s=timeout_s)
        paths = listed.stdout.decode(errors="replace").split("\0")
        return {path: await workspace.get(path) for path in paths if path and not is_protected(path, repository)}

    def list_tools(self, role: str = "act") -> list[ToolSchema]:
        """Return the tools of the agent, or of its sub-agent."""
        refused = () if role == "act" else ("edit", "delegate")
        return [SCHEMAS[name] for name in self.config.tools if name not in refused]

    async def grade(self, task: Task, repository: RepositoryTask, diff: bytes) -> tuple[DiffGrade, bool]:
        """Grade a diff in a clean workspace, or return the grade that is remembered. The flag says which.

        Raises:
            RolloutError: the clean copy cannot be made (kind `workspace`).
        """
        key = (task.task_id, repository.statement, diff)  # ids are unique within a file, and data.eval is another
        async with self.grades.hold(key) as graded:
            if graded is not None:
                return graded, True
            async with self.make_workspace(repository) as workspace:
                await self.start(workspace, repository)
                try:
                    graded = await grade(workspace, repository, diff, self.config.test_timeout_s)
                except WorkspaceError as error:
                    raise RolloutError("workspace", f"task {task.task_id}: {error}") from error
            if graded.verdict not in ("test_timeout", "workspace_lost", "no_report"):  # a busy machine may be to blame
                self.grades.put(key, graded)
        return graded, False


def list_sources(repository: RepositoryTask) -> list[str]:
    """Return the Python files of a record's repository without its tests, in git's order."""
    paths = sorted((path for path in repository.files if path.endswith(".py")), key=os.fsencode)
    return [path for path in paths if not is_protected(path, repository)]


def find_source(repository: RepositoryTask) -> str:
    """Return the repository's only source file. Raises RolloutError (`bad_task`) if it has none or several."""
    paths = list_sources(repository)
    if len(paths) != 1:
        raise RolloutError("bad_task", f"{repository.statement!r:.80}: format rewrite needs one source file")
    return paths[0]


class Loop:
    """Runs the conversation of an agent in its workspace until it answers or meets a limit."""

    def __init__(self, method: CodingAgent, workspace: RepositoryWorkspace, deadline: float, source: str | None):
        self.method = method
        self.source = source
        self.config: CodingSection = method.config
        self.workspace = workspace
        offered = self.config.tools if source is None else ()
        self.counts: Counter[str] = Counter({f"{CALLS}{name}": 0 for name in offered})
        self.deadline = deadline

    async def work(self, chat: Conversation, role: str, max_turns: int) -> End:
        """Ask and run tools in turn. Where it `answered`, the last message of `chat` is the answer."""
        tools = self.method.list_tools(role)
        for _ in range(max_turns):
            try:
                if not self.has_room(chat) and not (await self.compact(chat) and self.has_room(chat)):
                    return "context_limit"
                completion = await self.wait(chat.ask(role, self.config.max_tokens))
            except TimeoutError:
                return "time_limit"
            if completion.finish_reason == "length":
                return "cut_answer"
            results = await self.run_calls(chat, tools)
            if not results:
                return "answered"
            chat.messages += results
        return "turn_limit"

    async def run_calls(self, chat: Conversation, tools: list[ToolSchema]) -> list[Message]:
        """Run the calls of the last message in order, and return what they say; one without calls gives nothing."""
        text = self.method.tokenizer.decode(chat.messages[-1].ids)
        if self.source is not None:
            if fence := find_last_fence(strip_thoughts(text), PYTHON):
                await self.workspace.put(self.source, f"{fence.text}\n".encode(errors="replace"))
            return []
        if self.config.format == "fences":
            fence = find_last_fence(strip_thoughts(text).partition(OUTPUT)[0], SHELL)
            return [await self.run_call(chat, ToolCall(BASH.name, {"command": fence.text}), tools)] if fence else []
        reply = read_reply(text, self.method.call_format, tools)
        self.counts.update(reply.notes)
        if reply.error is not None:
            self.counts[f"malformed_{reply.error.kind}"] += 1
            return [self.method.renderer.message("tool", f"error: {reply.error.message}")]
        return [replace(await self.run_call(chat, call, tools), call_id=call.shown_id) for call in reply.calls]

    async def run_call(self, chat: Conversation, call: ToolCall, tools: list[ToolSchema]) -> Message:
        renderer = self.method.renderer
        if (error := check_call(call, tools)) is not None:
            self.counts[f"malformed_{error.kind}"] += 1
            return renderer.message("tool", f"error: {error.message}")
        self.counts[f"{CALLS}{call.name}"] += 1
        if call.name == DELEGATE.name:
            return await self.delegate(chat, call.arguments["question"])
        timeout_s = max(0.1, min(self.config.command_timeout_s, self.deadline - time.monotonic()))
        said, failed = await run_tool(self.workspace, call.name, call.arguments, timeout_s, self.config.output_chars)
        self.counts[FAILED_CALLS] += failed
        if not self.method.calls:
            return renderer.message("user", f"{OUTPUT}\n{said.rstrip()}\n```")
        return renderer.message("tool", said)

    async def delegate(self, chat: Conversation, question: str) -> Message:
        """Let a sub-agent work in the same workspace, and return what it answers."""
        renderer = self.method.renderer
        helper = chat.branch([renderer.message("user", SUBAGENT, question)])
        end = await self.work(helper, "subagent", self.config.subagent_turns)
        answer = helper.messages[-1]
        if end != "answered" or answer.role != "assistant":
            return renderer.message("tool", f"error: the helper ended with {end}")
        return renderer.message("tool", renderer.quote(answer.ids))

    def has_room(self, chat: Conversation) -> bool:
        """Return whether the context can hold the next turn."""
        return chat.count_tokens() + self.config.max_tokens <= self.config.context_tokens

    async def compact(self, chat: Conversation) -> bool:
        """Sum the conversation up to make room. Return False where that is off, or has no room itself.

        Raises:
            TimeoutError: the deadline has come.
        """
        config, request = self.config, self.method.renderer.message("user", SUMMARY_REQUEST)
        # Results of tools are dropped from the end until the request fits; the summary says what is known without them.
        while len(chat.messages) > 2 and chat.count_tokens(request) + config.max_summary_tokens > config.context_tokens:
            chat.messages.pop()
        if not config.max_summary_tokens or len(chat.messages) < 3:
            return False
        await self.wait(chat.compact(request, config.max_summary_tokens))
        return True

    async def wait(self, sampling: Coroutine[Any, Any, Completion]) -> Completion:
        """Wait for the policy. Raises TimeoutError at the deadline."""
        async with asyncio.timeout(max(0.0, self.deadline - time.monotonic())):
            return await sampling


SPEC = MethodSpec(
    "coding", CodingRecipe, PRESETS, CodingAgent, short_answers=False, check_task=check_task, answer="diff"
)
__getattr__ = find_hook  # by these names a backend imports its hooks from here
