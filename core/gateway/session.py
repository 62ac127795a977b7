"""One session of the gateway: the conversations that an agent holds with the policy, as a tree of exact tokens.

When a request sends an answer back, the session finds it (history.py) and continues with the very ids that were
sampled. What the agent rewrote is encoded anew, is never trained, and starts a new branch. The next prompt is the
stored ids followed by the new messages as the chat template renders them; no code knows a model family.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from core.gateway.echoes import EchoKind
from core.gateway.history import NOWHERE, Answer, AnswerTree, Continuation, RequestKey
from core.gateway.messages import (
    AgentRequest,
    ContextFullError,
    GatewayError,
    WireCall,
    WireMessage,
    join_parts,
    refuse,
)
from core.gateway.settings import SessionSettings
from core.gateway.transcriber import Transcriber
from core.policy.base import Policy, PolicyError
from core.text.call_formats import Reply
from core.text.tokenizer import Ids
from core.text.tool_calls import CallError, parse_json
from core.types import EDGE, POLICY, Completion, Sampling, Turn, derive_seed

INSTRUCTIONS = ("instructions",)
"""Marks the system message that Responses' instructions make."""

MAX_EVENTS = 1000
"""Limits the events of a session that are kept in order; all are counted."""

TURN_LIMITS = ("turn_limit", "tool_limit")
"""Names the refusals after which a session has no other answer."""


@dataclass(frozen=True, slots=True)
class FinishedSession:
    """Holds the turns of a session in the order in which they ended, and what was counted."""

    session_id: str
    turns: tuple[Turn, ...]
    counters: Mapping[str, int]
    events: tuple[Mapping[str, Any], ...] = ()
    """Lists what was counted, in order, the first MAX_EVENTS: `event`, and its `turn` (from 1), if it has one."""
    calls: Mapping[str, int] = field(default_factory=dict)
    """Counts the calls of each tool that was offered."""


class GatewaySession:
    """Answers the requests of one agent. Several may run at the same time."""

    def __init__(
        self,
        session_id: str,
        policies: Mapping[str, Policy],
        transcriber: Transcriber,
        settings: SessionSettings,
        sampling: Sampling | None = None,
        salt: str = "",
    ):
        self.session_id = session_id
        self.counters: Counter[str] = Counter()
        self.events: list[dict[str, Any]] = []
        self.finished: FinishedSession | None = None
        self.kept_tokens = 0
        """Counts the tokens of all prompts and answers, which stay in memory until the session is finished."""
        self._policies = policies
        self._transcriber = transcriber
        self._settings = settings
        self._sampling = sampling
        self._tree = AnswerTree(salt or session_id)
        self._unanswered: Counter[RequestKey] = Counter()
        self._calls_by_prompt: Counter[bytes] = Counter()
        self._named: dict[str, int] = {}
        self._echoes_seen: set[tuple[EchoKind, str]] = set()
        self._running: set[asyncio.Future[Completion]] = set()
        self._asked = 0
        self._last: tuple[int, BaseException | None] = 0, None
        """Holds the number of the latest request that ended, and what kept the policy from answering it, if anything.
        A request that was refused for what it asks does not count."""
        self._began = self._used_at = time.monotonic()

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that requests of this session can ask."""
        return tuple(self._policies)

    @property
    def closed(self) -> bool:
        return self.finished is not None

    @property
    def reached_limit(self) -> bool:
        """Whether a limit refused a request. A full context counts only until a later request is answered.

        That of another role does not count: the policy is not to blame.
        """
        at_turn_limit = any(self.counters[f"refused_{limit}"] for limit in TURN_LIMITS)
        return at_turn_limit or isinstance(self._last[1], ContextFullError)

    @property
    def failure(self) -> tuple[str, str] | None:
        """Say what kept the policy from answering the latest request, as (kind, message)."""
        error = self._last[1]
        if error is None or self.reached_limit:
            return None
        return str(getattr(error, "kind", f"exception_{type(error).__name__}")), str(error)

    @property
    def idle_s(self) -> float:
        """The seconds since a request last began or was answered; 0 while one runs."""
        return 0.0 if self._running else time.monotonic() - self._used_at

    async def answer_all(self, request: AgentRequest) -> list[Answer]:
        """Sample the `n` answers to a request. They are siblings, each a turn. If one fails, none of them counts.

        An answer counts once `mark_delivered` was called for it.

        Raises:
            GatewayError: the request cannot be answered.
            PolicyError: the policy gave no completion.
        """
        self._asked += 1
        number, failure = self._asked, None
        seed = request.seed
        asked = [request if seed is None else replace(request, seed=seed + i) for i in range(request.n)]
        answers = [asyncio.ensure_future(self._answer(each)) for each in asked]
        try:
            return await asyncio.gather(*answers)
        except BaseException as error:
            failure = error
            for each in answers:
                each.cancel()
            for outcome in await asyncio.gather(*answers, return_exceptions=True):
                if isinstance(outcome, Answer):
                    self.mark_lost(outcome)
            raise
        finally:
            self._settle(number, failure)

    def _settle(self, number: int, error: BaseException | None) -> None:
        """Keep what became of a request, unless a later one has ended, or it was cancelled or refused for its form."""
        is_full = isinstance(error, ContextFullError) and error.role == POLICY
        if isinstance(error, ContextFullError) and not is_full and not self.closed:
            self.note("other_role_full")
        of_policy = not isinstance(error, GatewayError) or error.status == 503 or is_full
        if number > self._last[0] and not self.closed and of_policy and not isinstance(error, asyncio.CancelledError):
            self._last = number, error

    async def _answer(self, request: AgentRequest) -> Answer:
        self._check_open()
        self._used_at = time.monotonic()
        self._check_limits()
        role, trainable = self._settings.find_role(request.model)
        if role not in self._policies:
            known = ", ".join(sorted(self._policies))
            raise GatewayError(404, "model_not_found", f"there is no role {role!r}; the roles are {known}", "model")
        continuation, prompt_ids, kept = self._prepare(request)
        sampling = self._make_sampling(request, prompt_ids, role)
        asked = time.monotonic() - self._began
        completion = await self._sample(role, continuation, prompt_ids, sampling)
        seconds = (asked, time.monotonic() - self._began)
        self.kept_tokens += len(prompt_ids) + len(completion.token_ids)
        if request.tokens is None:
            reply, thoughts, stop_text = self._transcriber.read(prompt_ids, completion, request.tools, sampling.stop)
        else:  # the client reads the ids itself
            reply, thoughts, stop_text = Reply(self._transcriber.tokenizer.decode(completion.token_ids)), 0, None
        number = len(self._tree.answers) + 1
        self._note_wishes(request, number, reply)
        wire_key = self._tree.make_wire_key(number)
        if reply.error is not None:
            self.note(f"malformed_{reply.error.kind}", number)
        for note in reply.notes:
            self.note(note, number)
        for echo in continuation.echoes:
            if echo not in self._echoes_seen:
                self._echoes_seen.add(echo)
                self.note(echo[0], number)
        if request.is_retry:
            self._mark_retried(continuation, role)
        calls = tuple(
            WireCall(f"call_{wire_key}_{i}", call.name, json.dumps(dict(call.arguments), ensure_ascii=False))
            for i, call in enumerate(reply.calls[:1] if request.single_call else reply.calls)
        )
        answer = Answer(
            number=number,
            wire_key=wire_key,
            role=role,
            continuation=continuation,
            tools=request.tools,
            prompt_ids=prompt_ids,
            kept=kept,
            completion=completion,
            message=WireMessage("assistant", reply.text, reply.reasoning or None, calls),
            reasoning_tokens=thoughts,
            stop_text=stop_text,
            trainable=trainable,
            seconds=seconds,
            shown_ids=tuple(call.shown_id for call in reply.calls),
        )
        self._tree.add(answer)
        return answer

    def _note_wishes(self, request: AgentRequest, number: int, reply: Reply) -> None:
        """Note what became of a client's wishes. The turn keeps every token, whatever the client gets."""
        if request.hides_tools:
            self.note("tools_hidden", number)
        if request.single_call and len(reply.calls) > 1:
            self.note("later_calls_dropped", number)
        if any(tool.strict for tool in request.tools):
            self._note_once("strict_ignored", number)
        if request.wants_json:
            self._note_once("format_unforced", number)
            if not reply.calls and isinstance(parse_json(reply.text), CallError):
                self.note("format_missed", number)

    async def _sample(self, role: str, continuation: Continuation, prompt_ids: Ids, sampling: Sampling) -> Completion:
        call = asyncio.ensure_future(self._policies[role].generate(prompt_ids, sampling, self.session_id))
        self._running.add(call)
        try:
            completion = await call
            self._check_open()
            if completion.finish_reason == "abort":
                raise GatewayError(503, "aborted", "the engine aborted the request")
            return completion
        except BaseException as error:
            self._check_open()  # `finish` has counted what it cancelled
            self._unanswered[continuation.key] += 1
            if isinstance(error, asyncio.CancelledError):
                self.note("unanswered")
            if isinstance(error, PolicyError) and error.kind == "too_long":
                message = f"The prompt for {role} exceeds the model's maximum context length: {error}"
                raise ContextFullError(message, str(error), role) from error
            raise
        finally:
            self._running.discard(call)
            self._used_at = time.monotonic()  # it is not idle while the reply is being written

    async def ask(self, read: Callable[[], AgentRequest]) -> Answer:
        """Answer the request that `read` returns, of an agent in this process, which has the answer at once.

        A refusal is counted, as over HTTP, also one that `read` raises.
        """
        try:
            request = read()
            over_http = {"n": request.n > 1, "return_token_ids": request.wants_ids, "logprobs": request.wants_logprobs}
            if refused := [name for name, is_asked in over_http.items() if is_asked]:
                raise refuse(refused[0], "is served over HTTP alone")
            [answer] = await self.answer_all(request)
        except GatewayError as error:
            self.note(f"refused_{error.kind}")
            raise
        self.mark_delivered(answer)
        return answer

    def note(self, event: str, turn: int | None = None, **more: int) -> None:
        """Count an event, and keep at which turn (from 1) it happened. The first MAX_EVENTS are kept."""
        self.counters[event] += 1
        if len(self.events) < MAX_EVENTS:
            self.events.append({"event": event, **more} if turn is None else {"event": event, "turn": turn, **more})

    def name_request(self, request_id: str, answer: Answer) -> None:
        """Remember how the agent calls the request of an answer, for `add_edge`."""
        self._named[request_id] = answer.number

    def add_edge(self, kind: str, source: str, target: str) -> None:
        """Note that the request `target` follows `source` as a `kind` such as `subagent_call` or `compaction`.

        An agent that speaks ACP says so; it names requests by the header X-ACP-Model-Request-ID.
        """
        if source in self._named and target in self._named:
            self.note(f"{EDGE}{kind}", self._named[target], source=self._named[source])
        else:
            self.note("edge_of_unknown_request")

    def _note_once(self, event: str, turn: int) -> None:
        if event not in self.counters:
            self.note(event, turn)

    def mark_delivered(self, answer: Answer) -> None:
        """Note that the client has the answer; only then can it come back, and only then is it trained."""
        answer.delivered = True
        self._used_at = time.monotonic()

    def mark_lost(self, answer: Answer) -> None:
        """Note that the client went away before it had the whole answer."""
        answer.delivered = False
        self._unanswered[answer.continuation.key] += 1
        self.note("unanswered", answer.number)

    def render_prompt(self, request: AgentRequest) -> Ids:
        """Return the prompt that a request would have, without asking a policy."""
        self._check_open()
        return self._prepare(request)[1]

    def finish(self) -> FinishedSession:
        """Close the session and return its turns. Requests that still run are cancelled."""
        self._check_open()
        for call in self._running:
            self.note("unanswered")
            call.cancel()
        turns = tuple(
            Turn(
                each.role,
                each.prompt_ids,
                each.completion,
                each.trainable and each.delivered and not each.retried,
                each.seconds,
            )
            for each in self._tree.answers.values()
        )
        answers = self._tree.answers.values()
        calls = Counter(call.name for answer in answers for call in answer.message.calls)
        offered = {tool.name: calls[tool.name] for answer in answers for tool in answer.tools}
        self.finished = FinishedSession(self.session_id, turns, dict(self.counters), tuple(self.events), offered)
        return self.finished

    def _check_open(self) -> None:
        if self.closed:
            raise GatewayError(410, "session_closed", f"session {self.session_id!r} is closed")

    def _check_limits(self) -> None:
        turns, tool_calls = self._settings.max_turns, self._settings.max_tool_calls
        answers = self._tree.answers.values()
        if turns is not None and len(answers) + len(self._running) >= turns:
            raise GatewayError(400, "turn_limit", f"the session has had its {turns} turns")
        if tool_calls is not None and sum(len(answer.message.calls) for answer in answers) > tool_calls:
            raise GatewayError(400, "tool_limit", f"the session has had its {tool_calls} tool calls")

    def _make_sampling(self, request: AgentRequest, prompt_ids: Ids, role: str) -> Sampling:
        """Return the session's sampling with the client's limit and stop texts; without one, all is the client's."""
        tokens, limit = len(prompt_ids), self._settings.max_context
        room = limit - tokens
        if room <= 0:
            message = (
                f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} "
                "tokens. Please reduce the length of the messages."
            )
            raise ContextFullError(message, f"{tokens} tokens > {limit} maximum", role)
        asked = {"temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k}
        given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        sampling = self._sampling
        if sampling is None:
            sampling = Sampling(max_new_tokens=room, seed=request.seed, **given)
        elif any(getattr(sampling, name) != value for name, value in given.items()):
            self.note("sampling_overridden")
        seed = sampling.seed
        if seed is not None and self._sampling is not None:
            # A seed by prompt, not by order of arrival: requests that run at the same time may overtake each other.
            digest = hashlib.blake2b(array("q", prompt_ids).tobytes(), digest_size=8).digest()
            seed = derive_seed(seed, digest.hex(), self._calls_by_prompt[digest])
            self._calls_by_prompt[digest] += 1
        limit = min(room, sampling.max_new_tokens, request.max_tokens or room)
        # A server knows where the model's config ends a text; a base model's does not end a turn of its chat template.
        stop_ids = [self._transcriber.tokenizer.eos_token_id]
        if request.tokens is not None:
            stop_ids = request.tokens.sampling_params.stop_token_ids or []
        return replace(
            sampling,
            max_new_tokens=limit,
            seed=seed,
            stop=(*sampling.stop, *request.stop),
            stop_token_ids=(*sampling.stop_token_ids, *stop_ids),
        )

    def _prepare(self, request: AgentRequest) -> tuple[Continuation, Ids, tuple[bool, ...]]:
        """Find where the request continues; return that, its prompt, and which answers in it keep their thoughts."""
        if request.tokens is not None:
            prompt = tuple(request.tokens.token_ids)
            return replace(NOWHERE, key=(0, prompt)), prompt, ()
        self._transcriber.check_tools(request.tools)
        messages = self._join_messages(request)
        if not messages:
            raise refuse("messages", "there is no message")
        if messages[-1].role == "assistant":
            raise refuse("messages", "the last message is the assistant's; continuing it is not implemented")
        continuation = self._tree.locate(messages)
        try:
            shown = self._transcriber.gather_system(continuation)
            if shown is not continuation:
                self._note_once("system_merged", len(self._tree.answers) + 1)
            ordered = self._transcriber.order_results(shown)
            if ordered is not shown:
                self._note_once("results_ordered", len(self._tree.answers) + 1)
            return continuation, *self._transcriber.render(ordered, request.tools, self._settings.history)
        except GatewayError:
            raise
        except Exception as error:  # chat templates raise what they like
            raise refuse("messages", f"the chat template refuses them: {error}") from error

    def _join_messages(self, request: AgentRequest) -> tuple[WireMessage, ...]:
        """Return the messages of a request behind its instructions and those of the response that it continues."""
        messages = tuple([self._look_up(message) if message.references else message for message in request.messages])
        if request.continues is not None:
            answer = self._tree.find_numbered([request.continues])
            if answer is None:
                problem = f"there is no response {request.continues!r}"
                raise GatewayError(404, "response_not_found", problem, "previous_response_id")
            earlier = self._tree.list_messages(answer)
            if earlier[0].marks == INSTRUCTIONS:  # they are those of one request, as at OpenAI
                del earlier[0]
            messages = (*earlier, *messages)
        if request.instructions is not None:
            messages = (WireMessage("system", request.instructions, marks=INSTRUCTIONS), *messages)
        return messages

    def _look_up(self, message: WireMessage) -> WireMessage:
        """Return an answer with the parts that its references name."""
        parts = [message]
        for reference in message.references:
            part = self._tree.find_part(reference)
            if part is None:
                raise GatewayError(
                    404, "item_not_found", f"no answer of this session has an item {reference!r}", "input"
                )
            parts.append(part)
        return replace(join_parts(parts), references=())

    def _mark_retried(self, continuation: Continuation, role: str) -> None:
        """Mark the answer that a client threw away.

        A client repeats a request mostly because it got no answer; then there is none to throw away.
        """
        if self._unanswered[continuation.key]:
            self._unanswered[continuation.key] -= 1
        elif (answer := self._tree.find_discarded(continuation, role)) is not None:
            answer.retried = True
            self.note("retried", answer.number)
