"""CodeScout: a policy with nothing but a terminal finds the files and functions that an issue asks to change.

Paper: "CodeScout: An Effective Recipe for Reinforcement Learning of Code Search Agents", arXiv 2603.17829.
Code studied: OpenHands/codescout at 974238b (on SkyRL and the OpenHands SDK).

Every rollout opens the repository in a workspace of its own (core/sandbox/workspace). In a turn the policy calls bash,
several times if it likes, and is shown what the commands print. It answers by one call of localization_finish. The
reward is the sum of the F1 of files, modules and functions against the gold patch (places.py): no test is run.

As in the released code, an answer beside other calls, or with text after it, earns nothing; a turn without a call ends
the rollout without an answer; and a rollout that used up its turns without an answer keeps its 0 in its group's
statistics and is not trained (`algorithm.overlong_filter` of the preset `paper`).

Departures, on purpose:
1. Token ids stay token ids. The released code finds the policy's tokens again by the markers of the chat template.
2. A call that cannot be read is answered by an error. There it is text, which ends the rollout.
3. The calls of a turn beyond `max_calls` are not run. There the prompt alone forbids them.
4. The repository has no .git, so no history can tell. A checkout of the host is read-only.
5. An answer that its schema refuses earns nothing and ends the rollout. There an error tells the policy, which goes on.
6. A rollout that another limit cut is not trained, too, and a turn needs `max_tokens` of room in the context. There a
   turn may use up the context, and a rollout for which it was too small is trained with its 0.
7. The tool is `bash`, a new shell for each command, and its output alone is shown. There it is the OpenHands SDK's
   `terminal`: one session, so a `cd` stays, with the folder and the exit code behind each output.

Run:  bash agentic/codescout/run.sh                         # tiny: two CPU cores, minutes
      bash agentic/codescout/run.sh --preset paper --backend slime --dry-run
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from agentic.codescout.config import PRESETS, CodeScoutRecipe
from agentic.codescout.places import CodePlaces, read_answer, read_gold, score
from agentic.codescout.prompts import BASH, FINISH, ISSUE, SYSTEM, TOO_MANY
from core.policy.base import Policy, Roles
from core.rollout.conversation import Conversation
from core.rollout.method import Method, MethodSpec, RolloutError, find_hook
from core.rollout.turns import Turns, begin_turns
from core.sandbox import workspace as workspaces
from core.sandbox.workspace import RepositoryWorkspace, WorkspaceError, WorkspaceUnavailable
from core.text.call_formats import Reply, need_format, read_reply
from core.text.conversation import Message, Renderer
from core.text.tokenizer import Tokenizer
from core.text.tool_calls import ToolCall, check_call
from core.types import CALLS, FAILED_CALLS, Sampling, Task, Trajectory

End = Literal["answered", "bad_answer", "no_call", "turn_limit", "cut_turn", "context_limit", "workspace_lost"]
"""Names how a search ends. The first three are the policy's own doing, and `completed`; the others are `truncated`."""
OWN_ENDS = ("answered", "bad_answer", "no_call")

WORKDIR = "/testbed"
"""Holds the files of a record. A checkout of the host is shown at its own path."""
TOOLS = (BASH, FINISH)


@dataclass(frozen=True, slots=True)
class SearchTask:
    """Holds what a task's record says: the issue, the gold places, and the repository as files or as a checkout."""

    statement: str
    gold: CodePlaces
    files: dict[str, bytes]
    folder: str


def read_task(task: Task) -> SearchTask:
    """Read a task's record.

    Raises:
        ValueError: a field is missing or has another form; the message begins with its name.
    """
    data = task.metadata
    files, folder = data.get("repository") or {}, data.get("folder") or ""
    if not isinstance(folder, str) or bool(files) == bool(folder):
        raise ValueError("metadata.repository: give it as path -> text, or name a checkout in metadata.folder")
    if folder and not Path(folder).is_dir():
        raise ValueError(f"metadata.folder: there is no folder {folder}; agentic/codescout/gold.py makes it")
    if fault := workspaces.find_bad_path(files):
        raise ValueError(f"metadata.repository: {' '.join(fault)}")
    try:
        gold = read_gold(data.get("file_changes") or ())
    except ValueError as error:
        raise ValueError(f"metadata.file_changes: {error}") from error
    contents = {path: text.encode("utf-8", "surrogatepass") for path, text in files.items()}
    return SearchTask(
        data.get("problem_statement") or task.question, gold, contents, folder and str(Path(folder).resolve())
    )


def check_task(recipe: CodeScoutRecipe, task: Task) -> tuple[str, str, str] | None:
    """Return what is wrong with a task's record, as (field, problem, fix), or None."""
    try:
        read_task(task)
    except ValueError as error:
        field, _, problem = str(error).partition(": ")
        return field, problem, "see agentic/codescout/gold.py for the fields"
    return None


class CodeScout(Method):
    """Runs the method. Its one role, `policy`, writes the turns `act`."""

    def __init__(self, recipe: CodeScoutRecipe, tokenizer: Tokenizer):
        self.config = recipe.codescout
        self.tokenizer = tokenizer
        self.renderer = Renderer(tokenizer)
        self.call_format = need_format(None, tokenizer)
        self.sandbox = workspaces.choose_backend() if self.config.backend == "auto" else self.config.backend

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Let the policy search until it answers or meets a limit, and reward the answer.

        Raises:
            RolloutError: the record is broken (`bad_task`), its issue leaves no room (`overlong_question`), or no
                sandbox can be had (`workspace`): this says nothing about the policy.
        """
        try:
            search = read_task(task)
        except ValueError as error:
            raise RolloutError("bad_task", f"task {task.task_id}: {error}") from error
        turns = begin_turns(sampling, self.tokenizer)
        counts: Counter[str] = Counter({f"{CALLS}{BASH.name}": 0})
        async with self.make_workspace(search) as workspace:
            end, locations = await self.search(search, workspace, roles["policy"], turns, counts)
        answer = read_answer(locations) if end == "answered" else None
        scores, config, used = score(answer or CodePlaces(), search.gold), self.config, len(turns.recorded)
        reward = sum(scores.values())
        return Trajectory(
            task_id=task.task_id,
            turns=tuple(turns.recorded),
            status="completed" if end in OWN_ENDS else "truncated",
            reward=reward + config.turns_weight * (used == config.rewarded_turns),
            metrics={
                "official": reward / len(scores),
                **scores,
                "turns": used,
                f"end_{end}": 1.0,
                **{name: float(count) for name, count in counts.items()},
            },
            log={"answer": None if locations is None else json.dumps(locations), "end": end},
        )

    def make_workspace(self, search: SearchTask) -> RepositoryWorkspace:
        """Return a workspace for the task, not yet started. Raises RolloutError (`workspace`): there is none."""
        config, paths = self.config, (search.folder,) if search.folder else ()
        try:
            return workspaces.IsolatedWorkspace(config.workspace, WORKDIR, config.backend, paths=paths)
        except (WorkspaceUnavailable, ValueError) as error:
            raise RolloutError("workspace", str(error)) from error

    async def start(self, workspace: RepositoryWorkspace, search: SearchTask) -> None:
        """Open a workspace and put the record's files there. Raises RolloutError (`workspace`) if that cannot be."""
        try:
            await workspace.open()
            if search.files:
                limit_s, archive = self.config.workspace.start_timeout_s, workspaces.pack_files(search.files)
                result = await workspace.exec("tar -x --no-same-owner", archive, timeout_s=limit_s)
                if not result.ok:
                    raise WorkspaceError("start", result.stderr.decode(errors="replace"))
        except (WorkspaceUnavailable, WorkspaceError) as error:
            raise RolloutError("workspace", str(error)) from error

    async def search(
        self, search: SearchTask, workspace: RepositoryWorkspace, policy: Policy, turns: Turns, counts: Counter[str]
    ) -> tuple[End, Any]:
        """Let the policy search in a workspace. Return how that ended, and the locations that it answered with."""
        await self.start(workspace, search)
        config = self.config
        chat = Conversation(policy, self.renderer, turns, self.open(search), [tool.to_openai() for tool in TOOLS])
        while len(turns.recorded) < config.max_turns:
            if chat.count_tokens() + config.max_tokens > config.context_tokens:
                if not turns.recorded:
                    raise RolloutError(
                        "overlong_question", "the issue leaves no room in codescout.context_tokens: raise it"
                    )
                return "context_limit", None
            completion = await chat.ask("act", config.max_tokens)
            if completion.finish_reason == "length":
                return "cut_turn", None
            text = str(self.tokenizer.decode(chat.messages[-1].ids))
            reply = read_reply(text, self.call_format, TOOLS)
            if any(call.name == FINISH.name for call in reply.calls):
                return self.read_end(reply, text)
            if reply.error is None and not reply.calls:
                return "no_call", None
            if len(turns.recorded) == config.max_turns:  # nobody would read what these commands print
                break
            try:
                chat.messages += await self.run_calls(reply, search, workspace, counts)
            except WorkspaceError:
                return "workspace_lost", None
        return "turn_limit", None

    def open(self, search: SearchTask) -> list[Message]:
        """Return the first messages."""
        if self.config.prompt == "issue":
            return [self.renderer.message("user", search.statement)]
        system = SYSTEM.format(calls=self.config.max_calls, turns=self.config.max_turns)
        asked = ISSUE.format(folder=search.folder or WORKDIR, statement=search.statement)
        return [self.renderer.message("system", system), self.renderer.message("user", asked)]

    def read_end(self, reply: Reply, text: str) -> tuple[End, Any]:
        """Read the answer of a turn; it must be the only call and the last thing in it."""
        (call, *others), last = reply.calls, text.rstrip()[-1:]
        alone = not others and last in (">", "}", "|")  # how the calls of every known template end
        if not alone or check_call(call, TOOLS) is not None or read_answer(call.arguments["locations"]) is None:
            return "bad_answer", None
        return "answered", call.arguments["locations"]

    async def run_calls(
        self, reply: Reply, search: SearchTask, workspace: RepositoryWorkspace, counts: Counter[str]
    ) -> list[Message]:
        """Run the commands of a turn one after another, and return what the policy is told of each.

        Raises:
            WorkspaceError: the workspace is gone.
        """
        counts.update(reply.notes)
        if reply.error is not None:
            counts[f"malformed_{reply.error.kind}"] += 1
            return [self.renderer.message("tool", f"error: {reply.error.message}")]
        told = []
        for number, call in enumerate(reply.calls):
            said = TOO_MANY
            if number < self.config.max_calls:
                said = await self.run_call(call, search, workspace, counts)
            told.append(replace(self.renderer.message("tool", said), call_id=call.shown_id))
        return told

    async def run_call(
        self, call: ToolCall, search: SearchTask, workspace: RepositoryWorkspace, counts: Counter[str]
    ) -> str:
        """Run one command and return what it printed, errors included."""
        if (error := check_call(call, TOOLS)) is not None:
            counts[f"malformed_{error.kind}"] += 1
            return f"error: {error.message}"
        counts[f"{CALLS}{call.name}"] += 1
        said, failed = await self.run_command(call.arguments["command"], search, workspace)
        counts[FAILED_CALLS] += failed
        return workspaces.shorten(said, self.config.output_chars)

    async def run_command(self, command: str, search: SearchTask, workspace: RepositoryWorkspace) -> tuple[str, bool]:
        """Run a command in the repository. Return its output, and whether it met a limit."""
        go = f"cd {shlex.quote(search.folder)} 2>&1; " if search.folder else ""
        result = await workspace.exec(
            f"{go}{workspaces.BASH}",
            command.encode(errors="replace"),
            timeout_s=self.config.command_timeout_s,
            output_bytes=max(1 << 16, 4 * self.config.output_chars),
        )
        said = result.stdout.decode(errors="replace")
        if result.reason != "exit":
            return f"{said}\nThe command met a limit ({result.reason}) and was ended.", True
        return said, False


SPEC = MethodSpec("codescout", CodeScoutRecipe, PRESETS, CodeScout, short_answers=False, check_task=check_task)
__getattr__ = find_hook  # by these names a backend imports its hooks from here
