"""One session of the gateway: the conversations that an agent holds with the policy, as a tree of exact tokens.

Every answer is a Node. When a later request sends an answer back, the session finds its node by the ids that it put on
the wire, or by the text, and continues with the very ids that were sampled. What the agent rewrote is encoded anew, is
never trained, and starts a new branch. The next prompt is the stored ids followed by the new messages as the chat
template renders them; no code knows a model family.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
import json
import re
import time
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from core.gateway.messages import (
    AgentRequest,
    GatewayError,
    MessageRole,
    WireCall,
    WireMessage,
    fold,
    fold_lead,
    refuse,
)
from core.gateway.transcriber import Transcriber
from core.policy.base import Policy
from core.seeds import derive_seed
from core.text.conversation import Message
from core.text.tokenizer import Ids
from core.text.tool_calls import ToolSchema
from core.types import Completion, Sampling, Turn

History = Literal["sampled", "template"]
"""Says which thoughts of earlier answers the next prompt keeps: all that were sampled, or those the template shows."""

Echo = Literal["verbatim", "reserialised", "reasoning_dropped", "flattened", "edited", "foreign"]
"""Names how an answer came back. The first four keep the stored ids; the last two are encoded anew and untrained."""

INSTRUCTIONS = ("instructions",)
"""Marks the system message that Responses' instructions make."""

MAX_FLATTENED = 1 << 16
"""Bounds the characters of a message whose text is searched for calls that a client wrote into it."""

_BARE: Mapping[str, Message] = {role: Message(role, ()) for role in get_args(MessageRole)}

MAX_EVENTS = 1000
"""Limits the events of a session that are kept in order; all are counted."""
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
    more is refused with status 429. So is a request after answers that hold more than `max_tool_calls` calls.
    `model_roles` maps patterns of model names to roles, the first that fits counts; a name that fits none asks the role
    `policy`, unless it begins with `frozen:`. Only answers of `policy` are trained; `frozen:policy` asks it untrained.
    A gateway that opens sessions on request finishes one that nobody asked anything for `max_idle_s` seconds.
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


@dataclass(eq=False, slots=True)
class Node:
    """Holds one answer, with all that led to it.

    `place` is where its request continued. `kept` says for each stored answer before this one whether its thoughts
    stand in `prompt_ids`. `stop_text` is the client's stop text that ended it, if any.
    """

    number: int
    role: str
    place: Place
    tools: tuple[ToolSchema, ...]
    prompt_ids: Ids
    kept: tuple[bool, ...]
    completion: Completion
    message: WireMessage
    reasoning_tokens: int
    stop_text: str | None
    trainable: bool
    answered: bool = False
    retried: bool = False
    folded_lead: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        self.folded_lead = fold_lead(self.lead)

    @property
    def parent(self) -> Node | None:
        """The answer that this one follows in its conversation."""
        return self.place.node

    @property
    def lead(self) -> tuple[WireMessage, ...]:
        """The messages between the answer of `parent` and this one."""
        return self.place.lead

    @property
    def path(self) -> list[Node]:
        """The nodes of this conversation from its first answer to this one."""
        path = [self]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        return path[::-1]


@dataclass(frozen=True, slots=True)
class FinishedSession:
    """Holds the turns of a session in the order in which they ended, and what was counted."""

    session_id: str
    turns: tuple[Turn, ...]
    counters: Mapping[str, int]
    events: tuple[Mapping[str, Any], ...] = ()
    """Lists what was counted, in order: `event`, and the `turn` (from 1) of which the request asked, if it has one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Says where a request with the messages `messages` continues: after the answer `node`, with the messages `lead`.

    `entries` are `messages` in order; an answer that the session knows stands there as its node. `path` are the places
    in `entries` of the answers up to `node`. `echoes` say how each answer came back.
    """

    messages: tuple[WireMessage, ...]
    node: Node | None
    lead: tuple[WireMessage, ...]
    entries: tuple[WireMessage | Node, ...]
    path: tuple[int, ...]
    echoes: tuple[tuple[Echo, str], ...]

    @property
    def key(self) -> tuple[int, tuple[Any, ...]]:
        """Is equal for equal requests."""
        return self.node.number if self.node else 0, fold_lead(self.lead)


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
        self.closed = False
        self.kept_tokens = 0
        """Counts the tokens of all prompts and answers, which stay in memory until the session is finished."""
        self._policies = policies
        self._transcriber = transcriber
        self._settings = settings
        self._sampling = sampling
        self._salt = hashlib.blake2b((salt or session_id).encode(), digest_size=4).hexdigest()
        self._nodes: dict[int, Node] = {}
        self._by_content: defaultdict[tuple[Any, ...], list[Node]] = defaultdict(list)
        self._found: dict[WireMessage, tuple[Node, Echo]] = {}
        self._wire_ids = re.compile(rf"_{self._salt}n(\d{{1,9}})")
        self._unanswered: Counter[tuple[int, tuple[Any, ...]]] = Counter()
        self._calls_by_prompt: Counter[bytes] = Counter()
        self._echoes_seen: set[tuple[Echo, str]] = set()
        self._running: set[asyncio.Future[Completion]] = set()
        self._used_at = time.monotonic()

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that requests of this session can ask."""
        return tuple(self._policies)

    @property
    def idle_s(self) -> float:
        """The seconds since a request last began or was answered; 0 while one runs."""
        return 0.0 if self._running else time.monotonic() - self._used_at

    def wire_id(self, prefix: str, number: int, place: int | None = None) -> str:
        """Return the id of a node, or of its call `place`, under which the client will send it back."""
        return f"{prefix}_{self._salt}n{number}" + ("" if place is None else f"_{place}")

    def find_numbers(self, text: str) -> list[int]:
        """Return the numbers of the nodes of this session whose wire ids occur in `text`."""
        return [int(found) for found in self._wire_ids.findall(text)]

    async def answer(self, request: AgentRequest) -> Node:
        """Sample the answer to a request. The node counts once `deliver` was called for it.

        Raises:
            GatewayError: the request cannot be answered.
            PolicyError: the policy gave no completion.
        """
        self._check_open()
        self._used_at = time.monotonic()
        self._check_limits()
        transcriber = self._transcriber
        role, trainable = self._settings.find_role(request.model)
        if role not in self._policies:
            known = ", ".join(sorted(self._policies))
            raise GatewayError(404, "model_not_found", f"there is no role {role!r}; the roles are {known}", "model")
        place, prompt_ids, kept = self._prepare(request)
        sampling = self._make_sampling(request, prompt_ids)
        completion = await self._sample(role, place, prompt_ids, sampling)
        self.kept_tokens += len(prompt_ids) + len(completion.token_ids)
        reply, thoughts, stop_text = transcriber.read(completion, request.tools, request.stop)
        number = len(self._nodes) + 1
        if reply.error is not None:
            self.note(f"malformed_{reply.error.kind}", number)
        for echo in place.echoes:
            if echo not in self._echoes_seen:
                self._echoes_seen.add(echo)
                self.note(echo[0], number)
        if request.is_retry:
            self._mark_retried(place, role)
        calls = tuple(
            WireCall(self.wire_id("call", number, i), call.name, json.dumps(dict(call.arguments), ensure_ascii=False))
            for i, call in enumerate(reply.calls)
        )
        node = Node(
            number=number,
            role=role,
            place=place,
            tools=request.tools,
            prompt_ids=prompt_ids,
            kept=kept,
            completion=completion,
            message=WireMessage("assistant", reply.text, reply.reasoning or None, calls),
            reasoning_tokens=thoughts,
            stop_text=stop_text,
            trainable=trainable,
        )
        self._nodes[number] = node
        self._by_content[content_key(node.message)].append(node)
        return node

    async def _sample(self, role: str, place: Place, prompt_ids: Ids, sampling: Sampling) -> Completion:
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
            self._unanswered[place.key] += 1
            if isinstance(error, asyncio.CancelledError):
                self.note("unanswered")
            raise
        finally:
            self._running.discard(call)

    async def ask(self, request: AgentRequest) -> Node:
        """Answer a request of this process, which has the answer at once. A refusal is counted, as over HTTP."""
        try:
            node = await self.answer(request)
        except GatewayError as error:
            self.note(f"refused_{error.kind}")
            raise
        self.mark_delivered(node)
        return node

    def note(self, event: str, turn: int | None = None) -> None:
        """Count an event, and keep at which turn (from 1) it happened. The first MAX_EVENTS are kept."""
        self.counters[event] += 1
        if len(self.events) < MAX_EVENTS:
            self.events.append({"event": event} if turn is None else {"event": event, "turn": turn})

    def mark_delivered(self, node: Node) -> None:
        """Note that the client has the answer; only then can it come back, and only then is it trained."""
        node.answered = True
        self._used_at = time.monotonic()

    def mark_lost(self, node: Node) -> None:
        """Note that the client went away before it had the whole answer."""
        node.answered = False
        self._unanswered[node.parent.number if node.parent else 0, node.folded_lead] += 1
        self.note("unanswered", node.number)

    def prompt_of(self, request: AgentRequest) -> Ids:
        """Return the prompt that a request would have, without asking a policy."""
        self._check_open()
        return self._prepare(request)[1]

    def finish(self) -> FinishedSession:
        """Close the session and return its turns. Requests that still run are cancelled."""
        self._check_open()
        self.closed = True
        for call in self._running:
            self.note("unanswered")
            call.cancel()
        turns = tuple(
            Turn(node.role, node.prompt_ids, node.completion, node.trainable and node.answered and not node.retried)
            for node in self._nodes.values()
        )
        return FinishedSession(self.session_id, turns, dict(self.counters), tuple(self.events))

    def _check_open(self) -> None:
        if self.closed:
            raise GatewayError(410, "session_closed", f"session {self.session_id!r} is closed")

    def _check_limits(self) -> None:
        turns, tool_calls = self._settings.max_turns, self._settings.max_tool_calls
        if turns is not None and len(self._nodes) + len(self._running) >= turns:
            raise GatewayError(429, "turn_limit", f"the session has had its {turns} turns")
        if tool_calls is not None and sum(len(node.message.calls) for node in self._nodes.values()) > tool_calls:
            raise GatewayError(429, "tool_limit", f"the session has had its {tool_calls} tool calls")

    def _make_sampling(self, request: AgentRequest, prompt_ids: Ids) -> Sampling:
        """Return the session's sampling with the client's limit and stop texts; without one, all is the client's."""
        room = self._settings.max_context - len(prompt_ids)
        if room <= 0:
            raise GatewayError(
                400,
                "context_length_exceeded",
                f"the prompt has {len(prompt_ids)} tokens, and the context is {self._settings.max_context}",
                "messages",
            )
        sampling = self._sampling
        if sampling is None:
            asked = {"temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k}
            given = {name: value for name, value in asked.items() if value is not None}
            sampling = Sampling(max_new_tokens=room, seed=request.seed, **given)  # type: ignore[arg-type]
        else:
            asked_and_given = (
                (request.temperature, sampling.temperature),
                (request.top_p, sampling.top_p),
                (request.top_k, sampling.top_k),
            )
            if any(asked not in (None, given) for asked, given in asked_and_given):
                self.note("sampling_overridden")
        seed = sampling.seed
        if seed is not None and self._sampling is not None:
            # A seed by prompt, not by order of arrival: requests that run at the same time may overtake each other.
            digest = hashlib.blake2b(array("q", prompt_ids).tobytes(), digest_size=8).digest()
            seed = derive_seed(seed, digest.hex(), self._calls_by_prompt[digest])
            self._calls_by_prompt[digest] += 1
        limit = min(room, sampling.max_new_tokens, request.max_tokens or room)
        return replace(sampling, max_new_tokens=limit, seed=seed, stop=(*sampling.stop, *request.stop))

    def _prepare(self, request: AgentRequest) -> tuple[Place, Ids, tuple[bool, ...]]:
        """Find where the request continues; return that, its prompt, and which answers in it keep their thoughts."""
        self._transcriber.check_tools(request.tools)
        messages = request.messages
        if request.continues is not None:
            earlier = self._messages_until(request.continues)
            if earlier[0].marks == INSTRUCTIONS and request.instructions is not None:
                del earlier[0]
            messages = (*earlier, *messages)
        if request.instructions is not None:
            messages = (WireMessage("system", request.instructions, marks=INSTRUCTIONS), *messages)
        if not messages:
            raise refuse("messages", "there is no message")
        if messages[-1].role == "assistant":
            raise refuse("messages", "the last message is the assistant's; continuing it is not implemented")
        place = self._locate(messages)
        try:
            return place, *self._render(place, request.tools)
        except GatewayError:
            raise
        except Exception as error:  # chat templates raise what they like
            raise refuse("messages", f"the chat template refuses them: {error}") from error

    def _messages_until(self, wire_id: str) -> list[WireMessage]:
        """Return all messages up to the answer with a wire id, that answer included."""
        node = self._find_numbered([wire_id])
        if node is None:
            raise GatewayError(404, "response_not_found", f"there is no response {wire_id!r}", "previous_response_id")
        return [message for step in node.path for message in (*step.lead, self._echo_of(step))]

    def _echo_of(self, node: Node) -> WireMessage:
        return replace(node.message, marks=(self.wire_id("resp", node.number),))

    def _locate(self, messages: tuple[WireMessage, ...]) -> Place:
        node: Node | None = None
        lead: list[WireMessage] = []
        entries: list[WireMessage | Node] = []
        path: list[int] = []
        echoes: list[tuple[Echo, str]] = []
        echo: Echo | None
        if (known := self._find_last(messages)) is not None:
            node, echo = known
            place = len(node.place.entries)
            entries = [*node.place.entries, node]
            path = [*node.place.path, place]
            echoes = [*node.place.echoes, (echo, str(node.number))]
        for place, message in enumerate(messages[len(entries) :], len(entries)):
            found, echo = self._find(message, node, lead) if message.role == "assistant" else (None, None)
            entries.append(found or message)
            if echo is not None:
                echoes.append((echo, str(found.number) if found else hash_message(message)))
            if found is not None and found.parent is node and is_same_lead(found, lead):
                node, lead = found, []
                path.append(place)
            else:
                lead.append(message)
        return Place(messages, node, tuple(lead), tuple(entries), tuple(path), tuple(echoes))

    def _find_last(self, messages: tuple[WireMessage, ...]) -> tuple[Node, Echo] | None:
        """Return the last answer in `messages`, and how it came back, if its request had all messages before it.

        A client sends its whole conversation with every request, and what led to that answer was located then.
        """
        last = next((i for i in reversed(range(len(messages))) if messages[i].role == "assistant"), None)
        found = self._find_by_id(messages[last]) if last is not None else None
        if found is None or found[0] is None or found[0].place.messages != messages[:last]:
            return None
        return found[0], found[1]

    def _find_by_id(self, message: WireMessage) -> tuple[Node | None, Echo] | None:
        """Return the answer whose id `message` bears, and how it repeats it; None if it bears none."""
        known = self._found.get(message)  # an id always means the same node
        if known is not None and known[0].answered:
            return known
        node = self._find_numbered([*(call.call_id for call in message.calls), *message.marks])
        if node is None:
            return None
        echo = classify_echo(node, message)
        if echo == "edited":
            return None, echo
        self._found[message] = node, echo
        return node, echo

    def _find(self, message: WireMessage, parent: Node | None, lead: Sequence[WireMessage]) -> tuple[Node | None, Echo]:
        """Find the answer that `message` repeats, and say how; an edited or foreign one has none."""
        if found := self._find_by_id(message):
            return found
        if not message.calls and len(message.text) <= MAX_FLATTENED:
            node = self._find_numbered([message.text])
            if node is not None and is_flattened(node.message, message):
                return node, "flattened"
        # Without an id, the text decides: first among the answers at this very place, the youngest first.
        folded_lead = fold_lead(lead)
        equal = [node for node in reversed(self._by_content.get(content_key(message), [])) if node.answered]
        here = [node for node in equal if node.parent is parent and node.folded_lead == folded_lead]
        for node in (*here, *equal):
            echo = classify_echo(node, message)
            if echo != "edited":
                return node, echo
        siblings = (node for node in self._nodes.values() if node.answered and node.parent is parent)
        return None, "edited" if any(node.folded_lead == folded_lead for node in siblings) else "foreign"

    def _find_numbered(self, texts: Sequence[str]) -> Node | None:
        """Return the answered node that the first wire id in the texts names, if there is one."""
        numbers = (number for text in texts for number in self.find_numbers(text))
        return next((node for n in numbers if (node := self._nodes.get(n)) is not None and node.answered), None)

    def _render(self, place: Place, tools: tuple[ToolSchema, ...]) -> tuple[Ids, tuple[bool, ...]]:
        """Return the prompt of a place, and for each stored answer in it whether it keeps its thoughts."""
        transcriber, renderer = self._transcriber, self._transcriber.renderer
        shown_tools = [tool.to_openai() for tool in tools]
        bare = [_BARE[message.role] for message in place.messages]
        answers = [i for i, entry in enumerate(place.entries) if isinstance(entry, Node)]
        hidden: set[int] = set()
        if self._settings.history == "template":
            thinking = [i for i in answers if _node_at(place, i).reasoning_tokens]
            shown = renderer.find_shown_thoughts(bare, thinking, shown_tools) if thinking else []
            hidden = {i for i, shows in zip(thinking, shown, strict=True) if not shows}
        kept = tuple([i not in hidden for i in answers])
        # The prompt goes on from the last answer before which nothing has changed since it was sampled.
        base, start, after = None, -1, 0
        for i in reversed(place.path):
            node, n = _node_at(place, i), bisect_left(answers, i)
            if kept[n] and node.kept == kept[:n] and node.tools == tools:
                base, start, after = node, i, n + 1
                break
        keeps_thoughts = iter(kept[after:])
        messages = bare[: start + 1]
        for entry in place.entries[start + 1 :]:
            if isinstance(entry, Node):
                messages.append(transcriber.encode_sampled(entry.completion, next(keeps_thoughts)))
            else:
                messages.append(transcriber.encode_message(entry))
        if base is None:
            return renderer.render(messages, shown_tools), kept
        tail = renderer.render_after(start, messages, shown_tools)
        tail = transcriber.continue_after(base.completion, tail)
        return base.prompt_ids + (base.completion.token_ids + tail), kept  # copies the long part once

    def _mark_retried(self, place: Place, role: str) -> None:
        """Mark the answer that a client threw away: the youngest to the same request that nothing follows.

        A client repeats a request mostly because it got no answer; then there is none to throw away.
        """
        if self._unanswered[place.key]:
            self._unanswered[place.key] -= 1
            return
        parents = {node.parent for node in self._nodes.values()}
        for node in reversed(self._nodes.values()):
            same = node.parent is place.node and node.role == role and node.folded_lead == place.key[1]
            if same and node.answered and not node.retried and node not in parents:
                node.retried = True
                self.note("retried", node.number)
                return


def _node_at(place: Place, i: int) -> Node:
    node = place.entries[i]
    assert isinstance(node, Node)
    return node


def hash_message(message: WireMessage) -> str:
    """Return what tells an answer that no node holds from others."""
    return hashlib.blake2b(repr(message).encode(errors="replace"), digest_size=8).hexdigest()


def is_same_lead(node: Node, lead: Sequence[WireMessage]) -> bool:
    """Return whether an answer was given to the messages `lead`, however they were written."""
    return node.lead == tuple(lead) or node.folded_lead == fold_lead(lead)


def content_key(message: WireMessage) -> tuple[Any, ...]:
    """Return what two echoes of one answer share, whatever happened to its thoughts."""
    return fold(message.text), tuple(call.canonical() for call in message.calls)


def written_calls(message: WireMessage) -> list[tuple[str, str]]:
    """Return names and arguments of a message's calls as they were written."""
    return [(call.name, call.arguments) for call in message.calls]


def classify_echo(node: Node, message: WireMessage) -> Echo:
    """Say how a message repeats the answer of a node."""
    sent = node.message
    verbatim = message.text == sent.text and written_calls(message) == written_calls(sent)
    message = message if verbatim else leave_out_defaults(message, node)
    if not verbatim and content_key(message) != content_key(sent):
        return "flattened" if is_flattened(sent, message) else "edited"
    if message.reasoning and fold(message.reasoning) != fold(sent.reasoning or ""):
        return "edited"
    if sent.reasoning and not message.reasoning:
        return "reasoning_dropped"
    return "verbatim" if verbatim else "reserialised"


def leave_out_defaults(message: WireMessage, node: Node) -> WireMessage:
    """Return a message without the arguments that a client filled in as the tool's schema says (Claude Code does)."""
    if len(message.calls) != len(node.message.calls):
        return message
    schemas = {tool.name: tool.parameters.get("properties") for tool in node.tools}
    pairs = zip(message.calls, node.message.calls, strict=True)
    return replace(message, calls=tuple(_leave_out_defaults(*pair, schemas.get(pair[0].name)) for pair in pairs))


def _leave_out_defaults(call: WireCall, sent: WireCall, properties: Any) -> WireCall:
    try:
        arguments, given = json.loads(call.arguments), json.loads(sent.arguments)
    except (ValueError, RecursionError):
        return call
    if not all(isinstance(each, dict) for each in (arguments, given, properties)):
        return call
    schemas = {name: each for name, each in properties.items() if isinstance(each, dict) and "default" in each}
    added = (name for name in arguments if name in schemas and name not in given)
    filled = {name for name in added if repr(arguments[name]) == repr(schemas[name]["default"])}
    kept = {name: value for name, value in arguments.items() if name not in filled}
    return replace(call, arguments=json.dumps(kept)) if filled else call


def is_flattened(sent: WireMessage, message: WireMessage) -> bool:
    """Return whether the text holds the sent text and then, as one list of Python or JSON, the sent calls."""
    if message.calls or not sent.calls or not fold(message.text).startswith(fold(sent.text)):
        return False
    begin, end = message.text.find("[", len(sent.text)), message.text.rfind("]") + 1
    try:
        found = [_canonical_call(call) for call in ast.literal_eval(message.text[begin:end])]
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        return False
    return found == [call.canonical() for call in sent.calls]


def _canonical_call(call: Mapping[str, Any]) -> tuple[str, str]:
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return WireCall("", function["name"], text).canonical()
