"""Holds the answers of a session and finds where a request continues.

The answers are a tree: each one follows another answer, or begins a conversation. A client sends its whole conversation
with every request, as it remembers it. The tree finds the stored answers in it, by the ids that they had on the wire or
by their text, so that the next prompt can go on from the ids that were sampled.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.gateway.echoes import EchoKind, classify_echo, is_flattened, make_content_key
from core.gateway.messages import WireMessage, canonicalize_messages
from core.text.tokenizer import Ids
from core.text.tool_calls import ToolSchema
from core.types import Completion

MAX_FLATTENED = 1 << 16
"""Bounds the characters of a message whose text is searched for calls that a client wrote into it."""

RequestKey = tuple[int, tuple[Any, ...]]
"""Holds the number of the answer before a request and what is new since: equal keys ask for the same answer."""


@dataclass(eq=False, slots=True)
class Answer:
    """Holds one answer of the policy, with all that led to it.

    `number` counts the answers of the session from 1, and `wire_key` stands in all ids under which the client will send
    the answer back. `continuation` says where its request continued. `kept` says for each stored answer before this one
    whether its thoughts stand in `prompt_ids`. `stop_text` is the client's stop text that ended it, if any. `seconds`
    are those of its sampling (`Turn.seconds`). `shown_ids` are those of its calls in its text, where they stand there.
    """

    number: int
    wire_key: str
    role: str
    continuation: Continuation
    tools: tuple[ToolSchema, ...]
    prompt_ids: Ids
    kept: tuple[bool, ...]
    completion: Completion
    message: WireMessage
    reasoning_tokens: int
    stop_text: str | None
    trainable: bool
    seconds: tuple[float, float]
    shown_ids: tuple[str, ...] = ()
    delivered: bool = False
    retried: bool = False

    def wire_id(self, prefix: str, call: int | None = None) -> str:
        """Return an id of this answer, or of one of its calls, for the client."""
        return f"{prefix}_{self.wire_key}" + ("" if call is None else f"_{call}")


@dataclass(frozen=True, slots=True)
class Continuation:
    """Says where a request with the messages `messages` continues: after the answer `parent`, with `new_messages`.

    `entries` are `messages` in order; an answer that the session knows stands there as itself. `path` are the indexes
    in `entries` of the answers up to `parent`. `echoes` say how each answer came back. `key` is equal for equal
    requests.
    """

    messages: tuple[WireMessage, ...]
    parent: Answer | None
    new_messages: tuple[WireMessage, ...]
    entries: tuple[WireMessage | Answer, ...]
    path: tuple[int, ...]
    echoes: tuple[tuple[EchoKind, str], ...]
    key: RequestKey


NOWHERE = Continuation((), None, (), (), (), (), (0, ()))
"""Stands for a request of token ids, which continues no message."""


class AnswerTree:
    """Holds the answers of a session. The ids that clients see follow from `salt`."""

    def __init__(self, salt: str):
        self.answers: dict[int, Answer] = {}
        self._salt = hashlib.blake2b(salt.encode(), digest_size=4).hexdigest()
        self._by_content: defaultdict[tuple[Any, ...], list[Answer]] = defaultdict(list)
        self._found: dict[WireMessage, tuple[Answer, EchoKind]] = {}
        self._wire_ids = re.compile(rf"_{self._salt}n(\d{{1,9}})")

    def make_wire_key(self, number: int) -> str:
        """Return what all wire ids of the answer with this number hold."""
        return f"{self._salt}n{number}"

    def add(self, answer: Answer) -> None:
        """Store an answer. It is found once it was delivered."""
        self.answers[answer.number] = answer
        self._by_content[make_content_key(answer.message)].append(answer)

    def find_numbered(self, texts: Sequence[str]) -> Answer | None:
        """Return the delivered answer that the first wire id in the texts names, if there is one."""
        numbers = (int(number) for text in texts for number in self._wire_ids.findall(text))
        return next((found for n in numbers if (found := self.answers.get(n)) is not None and found.delivered), None)

    def find_part(self, wire_id: str) -> WireMessage | None:
        """Return the thoughts, the text or the call that a wire id names, as a message."""
        answer = self.find_numbered([wire_id])
        if answer is None:
            return None
        message = answer.message
        parts = {
            answer.wire_id("rs"): WireMessage("assistant", "", message.reasoning),
            answer.wire_id("msg"): WireMessage("assistant", message.text),
            **{answer.wire_id("fc", i): WireMessage("assistant", "", calls=(c,)) for i, c in enumerate(message.calls)},
        }
        part = parts.get(wire_id)
        return replace(part, marks=(wire_id,)) if part else None

    def list_messages(self, answer: Answer) -> list[WireMessage]:
        """Return all messages of a conversation up to an answer, that answer included."""
        messages: list[WireMessage] = []
        step: Answer | None = answer
        while step is not None:
            messages.append(replace(step.message, marks=(step.wire_id("resp"),)))
            messages += reversed(step.continuation.new_messages)
            step = step.continuation.parent
        return messages[::-1]

    def locate(self, messages: tuple[WireMessage, ...]) -> Continuation:
        """Find where a request with these messages continues."""
        parent: Answer | None = None
        new: list[WireMessage] = []
        entries: list[WireMessage | Answer] = []
        path: list[int] = []
        echoes: list[tuple[EchoKind, str]] = []
        if (known := self._find_last(messages)) is not None:
            parent, kind = known
            before = parent.continuation
            entries = [*before.entries, parent]
            path = [*before.path, len(before.entries)]
            echoes = [*before.echoes, (kind, str(parent.number))]
        for index, message in enumerate(messages[len(entries) :], len(entries)):
            found: Answer | None = None
            if message.role == "assistant":
                found, kind = self._find(message, parent, new)
                written = repr(message).encode(errors="replace")
                echoes.append((kind, str(found.number) if found else hashlib.blake2b(written).hexdigest()))
            entries.append(found or message)
            if found is not None and is_answer_to(found, parent, new):
                parent, new = found, []
                path.append(index)
            else:
                new.append(message)
        key = make_request_key(parent, new)
        return Continuation(messages, parent, tuple(new), tuple(entries), tuple(path), tuple(echoes), key)

    def find_discarded(self, continuation: Continuation, role: str) -> Answer | None:
        """Return the youngest answer to the same request that nothing follows; a client that asks again has none."""
        parents = {answer.continuation.parent for answer in self.answers.values()}
        for answer in reversed(self.answers.values()):
            same = answer.role == role and answer.continuation.key == continuation.key
            if same and answer.delivered and not answer.retried and answer not in parents:
                return answer
        return None

    def _find_last(self, messages: tuple[WireMessage, ...]) -> tuple[Answer, EchoKind] | None:
        """Return the last answer in `messages`, and how it came back, if its request had all messages before it.

        A client sends its whole conversation with every request, and what led to that answer was located then.
        """
        last = next((i for i in reversed(range(len(messages))) if messages[i].role == "assistant"), None)
        found = self._find_by_id(messages[last]) if last is not None else None
        if found is None or found[0] is None or found[0].continuation.messages != messages[:last]:
            return None
        return found[0], found[1]

    def _find_by_id(self, message: WireMessage) -> tuple[Answer | None, EchoKind] | None:
        """Return the answer whose id `message` bears, and how it repeats it; None if it bears none."""
        known = self._found.get(message)  # an id always means the same answer
        if known is not None and known[0].delivered:
            return known
        answer = self.find_numbered([*(call.call_id for call in message.calls), *message.marks])
        if answer is None:
            return None
        kind = classify_echo(answer.message, message, answer.tools)
        if kind == "edited":
            return None, kind
        self._found[message] = answer, kind
        return answer, kind

    def _find(
        self, message: WireMessage, parent: Answer | None, new: Sequence[WireMessage]
    ) -> tuple[Answer | None, EchoKind]:
        """Find the answer that `message` repeats, and say how; an edited or foreign one has none."""
        if found := self._find_by_id(message):
            return found
        if not message.calls and len(message.text) <= MAX_FLATTENED:
            answer = self.find_numbered([message.text])
            if answer is not None and is_flattened(answer.message, message):
                return answer, "flattened"
        # Without an id, the text decides: first among the answers at this very place, the youngest first.
        key = make_request_key(parent, new)
        equal = [answer for answer in reversed(self._by_content.get(make_content_key(message), [])) if answer.delivered]
        here = [answer for answer in equal if answer.continuation.key == key]
        for answer in (*here, *equal):
            kind = classify_echo(answer.message, message, answer.tools)
            if kind != "edited":
                return answer, kind
        siblings = (answer.continuation.key == key for answer in self.answers.values() if answer.delivered)
        return None, "edited" if any(siblings) else "foreign"


def make_request_key(parent: Answer | None, new_messages: Sequence[WireMessage]) -> RequestKey:
    """Return the key of a request that follows `parent` with `new_messages`."""
    return parent.number if parent else 0, canonicalize_messages(new_messages)


def is_answer_to(answer: Answer, parent: Answer | None, new_messages: Sequence[WireMessage]) -> bool:
    """Return whether an answer was given after `parent` to these messages, however they were written."""
    given = answer.continuation
    if given.parent is not parent:
        return False
    return given.new_messages == tuple(new_messages) or given.key == make_request_key(parent, new_messages)
