"""An agent that somebody else wrote, as a method: it talks to the gateway, and its answer gets a reward.

    async def run(task: Task, endpoint: Endpoint) -> str:
        client = openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key=endpoint.api_key)
        ...

    method = AgentMethod(run, lambda task, answer: float(answer in task.answers), tokenizer, settings)

The agent may be any program: `Command` runs one as a process, which finds the gateway in its environment.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import tempfile
import threading
import traceback
import unicodedata
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.gateway.settings import SessionSettings, list_other_roles
from core.policy.base import Roles
from core.rollout.method import Method, RolloutError
from core.rollout.reward import Reward, call_reward, to_number
from core.text.tokenizer import Tokenizer
from core.types import CALLS, Sampling, Task, Trajectory, Turn

if TYPE_CHECKING:
    from core.gateway.session import GatewaySession

logger = logging.getLogger(__name__)

QUESTION_FILE = "{question_file}"
"""Stands in a command for the path of a file that holds the question."""

MAX_ARGUMENT = (1 << 17) - 1
"""Bounds the bytes of an argument, without the NUL behind it: Linux starts no program with a longer one."""

KEPT_OUTPUT = 1 << 20
"""Bounds the bytes that are kept of a command's output: its end has the answer, or the reason why there is none."""
TOLD_OUTPUT = 1 << 14
"""Bounds the characters of that reason, of standard output and standard error each."""
BLOCKED_S = 10.0
"""Says how long a function may keep the thread of all rollouts before a warning tells of it."""
LEFT_OPEN_S = 5.0
"""Limits the wait for the end of the output of a command that has ended."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Tells an agent where its session is. A model name asks the policy and `frozen:NAME` another role, unless
    `SessionSettings.model_roles` says otherwise.

    `session` is the session itself, for models that need no HTTP (langchain_model.py, strands_model.py).
    """

    url: str
    api_key: str
    model: str = "policy"
    session: GatewaySession | None = None

    @property
    def openai_url(self) -> str:
        """The base URL for clients of OpenAI's protocols."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The base URL for clients of Anthropic's protocol, which append `/v1/messages` themselves."""
        return self.url

    def environment(self) -> dict[str, str]:
        """Return the variables in which OpenAI's and Anthropic's clients look for a server and a key."""
        return {
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.anthropic_url,
            "ANTHROPIC_API_KEY": self.api_key,
            "MODEL": self.model,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """Holds what a run of an agent came to. An agent that is an environment, too, has a reward and metrics of its own.

    Each metric is averaged over the rollouts that have it, as `environment_NAME`: others may be of another agent.
    `truncated` says that a limit ended it. Raises ValueError if the reward or a metric is no finite number.
    """

    answer: str
    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    truncated: bool = False
    task: Task | None = None
    """Holds the task as `grade` shall see it, if it shall see more than the record's."""

    def __post_init__(self) -> None:
        numbers = self.metrics if self.reward is None else {"reward": self.reward, **self.metrics}
        for name, value in numbers.items():
            if to_number(value) is None:
                raise ValueError(f"{name} is {value!r}, which is no finite number")


RunAgent = Callable[[Task, Endpoint], Awaitable[str | Outcome]]
"""Runs an agent on one task and returns its answer, or an Outcome."""


class AgentMethod(Method):
    """Runs an agent against the gateway, one session a rollout. It may ask every role of the run.

    Without `grade` a rollout has the reward of its Outcome, or none yet.

    An agent that is stopped by a limit of turns, tool calls or context has the status `truncated`, and the answer that
    it gives all the same, or "". One whose last answer `max_new_tokens` or the context cut is `truncated`, too. Where
    the policy failed at the agent's last request, the rollout fails with that fault, also if the agent gave an answer.
    One that had no answer of the gateway fails as `unasked`: its reward says nothing of the policy. One that did not
    send the task's earlier messages fails as `messages_unsent`. A RolloutError of the agent keeps its kind; any other
    error fails the rollout as `agent`. If `run` has an asynchronous method `close`, it is called at the end.
    """

    def __init__(
        self,
        run: RunAgent,
        grade: Reward | None,
        tokenizer: Tokenizer,
        settings: SessionSettings,
        *,
        max_new_tokens: int = 1024,
        template_options: Mapping[str, Any] | None = None,
    ):
        from core.gateway.gateway import Gateway, serve_gateway  # here: a recipe is read without a server

        self.run = run
        self.grade = grade
        self.needs = list_other_roles(settings.model_roles)
        self.max_new_tokens = max_new_tokens
        self._max_context = settings.max_context
        self._tokenizer = tokenizer
        self.gateway = Gateway({}, tokenizer, settings, template_options=template_options)
        self._serve = partial(serve_gateway, self.gateway)
        self._server = AsyncExitStack()
        self._url: asyncio.Task[str] | None = None
        self._rollouts = 0

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Run the agent in a session of its own; reward its answer."""
        if self._url is None:
            self._url = asyncio.create_task(self._server.enter_async_context(self._serve()))
            closed = threading.Event()
            self._server.callback(closed.set)
            watched = self.run, asyncio.get_running_loop(), threading.get_ident(), closed
            threading.Thread(target=tell_blocking, args=watched, daemon=True).start()
        url = await asyncio.shield(self._url)
        self._rollouts += 1
        session_id = f"{uuid.uuid4().hex[:8]}-{self._rollouts}"
        session = self.gateway.open_rollout(session_id, task, roles, sampling, self.max_new_tokens)
        outcome, failure = Outcome(""), None
        try:
            returned = await self.run(task, Endpoint(f"{url}/s/{session_id}", session_id, session=session))
            given = Outcome(returned) if isinstance(returned, str) else returned
            if not isinstance(given, Outcome):
                raise TypeError(f"the agent returned {returned!r}, which is no text"[:200])
            outcome = given
        except Exception as error:  # an agent fails in its own ways
            failure = error
        finally:
            # An agent may finish it itself, as one that speaks ACP does.
            finished = session.finished or await self.gateway.finish_session(session_id)
        if session.failure is not None:  # whatever the agent made of it
            kind, message = session.failure
            raise RolloutError(kind, f"the agent's last request got no answer: {message}") from failure
        if isinstance(failure, RolloutError):
            raise failure
        if failure is not None and not session.reached_limit:
            raise RolloutError("agent", f"{type(failure).__name__}: {failure}") from failure
        if not finished.turns and not session.reached_limit:  # it may have asked another server
            told = f"it was given {dict(finished.counters)}" if finished.counters else "let its client take `endpoint`"
            raise RolloutError("unasked", f"task {task.task_id}: the agent has no answer of the gateway; {told}")
        if finished.turns and (unsent := find_unsent(task, finished.turns, self._tokenizer)):
            raise RolloutError("messages_unsent", f"task {task.task_id}: the agent sent {unsent}; send task.messages")
        last = [turn for turn in finished.turns if turn.trained][-1:]
        cut = session.reached_limit or any(self._is_cut(turn) for turn in last)
        return Trajectory(
            task.task_id,
            finished.turns,
            status="truncated" if outcome.truncated or cut else "completed",
            reward=outcome.reward
            if self.grade is None
            else await call_reward(self.grade, outcome.task or task, outcome.answer),
            metrics={
                "turns": len(finished.turns),
                **{name: float(n) for name, n in finished.counters.items()},
                **{f"{CALLS}{name}": float(n) for name, n in finished.calls.items()},
                **{f"environment_{name}": float(value) for name, value in outcome.metrics.items()},
            },
            log={"answer": outcome.answer, "wire": finished.events},
        )

    def _is_cut(self, turn: Turn) -> bool:
        """Return whether a limit of ours cut a reply, not one that the agent asked for."""
        room = min(self.max_new_tokens, self._max_context - len(turn.prompt_ids))
        return turn.completion.finish_reason == "length" and len(turn.completion.token_ids) >= room

    async def close(self) -> None:
        if close := getattr(self.run, "close", None):
            await close()
        await self._server.aclose()
        self._url = None


def tell_blocking(run: RunAgent, loop: asyncio.AbstractEventLoop, thread: int, closed: threading.Event) -> None:
    """Warn once if a function keeps the thread of the event loop: nobody answers it there, nor ends it in time."""
    while not closed.wait(BLOCKED_S):
        beat = threading.Event()
        try:
            loop.call_soon_threadsafe(beat.set)
        except RuntimeError:  # the loop is closed
            return
        if beat.wait(BLOCKED_S) or (frame := sys._current_frames().get(thread)) is None:
            continue
        if any(each.f_code is getattr(run, "__code__", None) for each, _ in traceback.walk_stack(frame)):
            about = "%s.%s keeps the thread of all rollouts and the gateway: await its client, or use asyncio.to_thread"
            logger.warning(about, run.__module__, run.__qualname__)
            return


def find_unsent(task: Task, turns: Sequence[Turn], tokenizer: Tokenizer) -> str | None:
    """Name the first message before a task's question that no prompt shows; None if all were sent."""

    def plain(text: str) -> str:
        return " ".join(unicodedata.normalize("NFC", text).split())

    prompts = [plain(str(tokenizer.decode(turn.prompt_ids))) for turn in turns] if task.earlier_messages else []
    for number, message in enumerate(task.earlier_messages):
        if not any(plain(message["content"]) in prompt for prompt in prompts):
            return f"no prompt with message {number} ({message['role']}) of its record"
    return None


def find_program(words: Sequence[str]) -> list[str]:
    """Return the words of a program as any folder can start it: files by their whole path, `python` as our own."""
    # Links stay: the python of an environment is one, and finds its packages by where it lies.
    program, *rest = (str(Path(word).absolute()) if Path(word).is_file() else word for word in words)
    return [sys.executable if program == "python" else program, *rest]


@dataclass(frozen=True, slots=True)
class Command:
    """Runs an agent as a process in an empty folder: `arguments`, then the question. Its last line is the answer.

    A question of any length fits where an argument holds `{question_file}`: that becomes the path of a file with the
    question, and no argument is added. The process gets the variables of `Endpoint.environment`, those named in
    `inherited`, and that folder as its HOME.
    """

    arguments: tuple[str, ...]
    inherited: tuple[str, ...] = ("PATH", "LANG", "LC_ALL")

    async def __call__(self, task: Task, endpoint: Endpoint) -> str:
        """Run the command on a task.

        Raises:
            RuntimeError: it ended with another status than 0, and the message holds the end of what it wrote; or its
                last line is longer than KEPT_OUTPUT bytes.
            ValueError: the question cannot be an argument; the message names {question_file}.
        """
        by_file = any(QUESTION_FILE in argument for argument in self.arguments)
        size = len(task.question.encode())
        if not by_file and (size > MAX_ARGUMENT or "\0" in task.question):
            raise ValueError(
                f"the question of {size} bytes cannot be an argument, which has at most {MAX_ARGUMENT} and no NUL; "
                f"write {QUESTION_FILE} into the command, and let the program read that file"
            )
        kept = {name: os.environ[name] for name in self.inherited if name in os.environ}
        own = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # what it left running may still write there
        with own as folder, tempfile.NamedTemporaryFile() as file:
            file.write(task.question.encode())
            file.flush()
            words = [word.replace(QUESTION_FILE, file.name) for word in self.arguments]
            process, output = await asyncio.get_running_loop().subprocess_exec(
                _Output,
                *words,
                *([] if by_file else [task.question]),
                cwd=folder,
                env={**kept, "HOME": folder, **endpoint.environment()},
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                await output.exited.wait()
                _kill_group(process)  # what it left running would keep its output open
                with suppress(TimeoutError):  # what has begun a session of its own still does
                    await asyncio.wait_for(output.closed.wait(), LEFT_OPEN_S)
            finally:
                _kill_group(process)
                process.close()
        written, errors = (kept.decode(errors="replace").strip() for kept in output.kept.values())
        if status := process.get_returncode():
            told = f"{written[-TOLD_OUTPUT:]}{errors[-TOLD_OUTPUT:]}"
            raise RuntimeError(f"{self.arguments[0]} ended with status {status}: {told}")
        last = re.split("[\r\n]", written)[-1]
        if last == written and len(output.kept[1]) == KEPT_OUTPUT:
            raise RuntimeError(f"the last line of {self.arguments[0]} is longer than {KEPT_OUTPUT} bytes")
        return last.strip()


def _kill_group(process: asyncio.SubprocessTransport) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.get_pid(), 9)


class _Output(asyncio.SubprocessProtocol):
    """Keeps the last KEPT_OUTPUT bytes of what a process writes, by file descriptor."""

    def __init__(self) -> None:
        self.kept = {1: bytearray(), 2: bytearray()}
        self.exited, self.closed = asyncio.Event(), asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.kept[fd] += data
        del self.kept[fd][:-KEPT_OUTPUT]

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()  # it has ended, and nobody holds its output open
