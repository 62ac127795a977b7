"""This module renders a conversation as token ids with the model's own chat template.

Every message is spliced into the template as ids. Text from outside is encoded once, without special tokens. Ids that a
model sampled stay as they are. Only our own `Markup` may hold special tokens, so nobody in the conversation can forge
its structure. A rendered prompt extends the ids of the prompt before it wherever the template allows that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Any

from core.text.tokenizer import CUT, Ids, Tokenizer, cut_added_tokens, encode_text, special_ids
from core.text.tool_calls import (
    OPENING,
    THOUGHT,
    THOUGHT_END,
    ToolCall,
    find_answer,
    find_opening,
    split_thoughts,
)

MAX_CACHED_CHARACTERS = 400
"""Limits the texts whose ids are cached."""

_NO_THOUGHTS = re.compile(rf"(\s*+)(?:{THOUGHT}\s*)?{THOUGHT_END}\s*\Z")
"""Matches what templates (of Qwen3.5, GLM, Kimi) write before an answer whose thoughts they do not see."""

_MARK = re.compile("\ue000(\\d+)\ue001")


@dataclass(frozen=True, slots=True)
class Markup:
    """Marks our own text; special tokens in it are encoded as special tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """Holds one encoded message; `Renderer.message` makes it. `calls` are tool calls that the template writes.

    `call_id` is the id of the call whose result this is, where the template shows such ids (ToolCall.shown_id).
    """

    role: str
    ids: Ids
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """Holds the text that a template makes around the contents of messages.

    `pieces` are its own texts at [0::2], and at [1::2] the number of the content that stands there. `places` says at
    which index of `pieces` a number stands. `missing` are the numbers that do not occur.
    """

    pieces: Sequence[str]
    places: Mapping[int, int]
    missing: tuple[int, ...]

    @property
    def repeats(self) -> bool:
        """Whether a content occurs more than once."""
        return len(self.places) < len(self.pieces) // 2


class Renderer:
    """Renders messages into prompts for one tokenizer. Its chat template gets `options`, such as enable_thinking."""

    def __init__(self, tokenizer: Tokenizer, options: Mapping[str, Any] | None = None):
        self.tokenizer = tokenizer
        self._options = dict(options or {})
        self._special_ids = special_ids(tokenizer)
        self.shows_ids = "tool_call_id" in str(getattr(tokenizer, "chat_template", ""))
        """Whether the template shows which call a result answers."""
        self._encode_markup_cached = lru_cache(maxsize=4096)(self._encode_markup)
        self._encode_text = partial(encode_text, tokenizer)
        self._encode_text_cached = lru_cache(maxsize=4096)(self._encode_text)
        # The rollouts of a group have conversations of one shape, and a conversation is rendered for each of its turns.
        self._frame_roles_cached = lru_cache(maxsize=256)(self._frame_roles)

    def message(self, role: str, *parts: str | Markup | Ids) -> Message:
        """Encode a message from its parts in order: text from outside, our own markup, or ids that a model sampled."""
        ids: list[int] = []
        for part in parts:
            if isinstance(part, str):
                # Short texts are cached: the turns and rollouts of a group repeat the same questions and lines.
                encode = self._encode_text_cached if len(part) <= MAX_CACHED_CHARACTERS else self._encode_text
                ids += encode(part)
            else:
                ids += self._encode_markup_cached(part.text) if isinstance(part, Markup) else part
        return Message(role, tuple(ids))

    def plain_messages(self, messages: Sequence[Mapping[str, str]]) -> list[Message]:
        """Encode messages from outside, each a {role, content}."""
        return [self.message(message["role"], message["content"]) for message in messages]

    def sampled_message(self, ids: Ids, prompt: Ids = ()) -> Message:
        """Wrap ids that were sampled after `prompt` as an assistant's message, with what the prompt has opened.

        The end token is left out: the template adds that itself.
        """
        has_end = bool(ids) and ids[-1] in self.ends
        return Message("assistant", self.find_opening(prompt) + (ids[:-1] if has_end else ids))

    @cached_property
    def ends(self) -> frozenset[int]:
        """Holds the ids that end an answer: the end token, and special ones with which the template goes on behind it.

        So a reply of GLM ends with the token of the next role.
        """
        ends, messages = {self.tokenizer.eos_token_id}, [self.message(role, "-") for role in ("user", "assistant")]
        for role in ("user", "tool"):
            try:
                tail = self.render([*messages, self.message(role, "-")], after=1)
            except Exception:  # templates raise what they like
                continue
            ends |= {*tail[:1]} & {*self.tokenizer.all_special_ids}
        return frozenset(ends)

    def quote(self, ids: Ids) -> Ids:
        """Return an assistant's message as content for another: without special tokens, or thoughts that end."""
        answer = find_answer(self.tokenizer, ids)
        return tuple(i for i in (ids if answer is None else answer) if i not in self._special_ids)

    def find_opening(self, prompt: Ids) -> Ids:
        """Return the ids at the end of a prompt that belong to the reply: a thought that it opens, or an empty one."""
        return self._encode_markup_cached(find_opening(self.tokenizer, prompt))

    def render_between(self, reply: Ids, *messages: Message) -> Ids:
        """Return the ids between a sampled reply and the next one, with `messages` between the two.

        So a conversation is one list of ids that only grows. An end token that was sampled is not repeated.
        """
        dash = self.message("user", "-")
        tail = self.render([dash, replace(dash, role="assistant"), *messages], after=1)
        ended = reply[-1:] == tail[:1] and reply[-1] in self.ends
        return tail[1:] if ended else tail

    def find_shown_thoughts(
        self, messages: Sequence[Message], thinking: Sequence[int], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[bool]:
        """Return for each index in `thinking` whether the template shows the thoughts of that assistant's message."""
        placeholders: list[dict[str, Any]] = [{"role": message.role, "content": "-"} for message in messages]
        for i in thinking:
            thoughts = {"reasoning_content": _mark(i)}
            own = {"content": f"{THOUGHT}\n{_mark(i)}\n{THOUGHT_END}\n\n-"}
            placeholders[i] |= thoughts if self._takes_thoughts else own
        for placeholder, message in zip(placeholders, messages, strict=True):
            if message.calls:
                placeholder["tool_calls"] = [_show_call(call, dict(call.arguments)) for call in message.calls]
        rendered = self.tokenizer.apply_chat_template(
            placeholders,
            tools=list(tools) or None,
            tokenize=False,
            add_generation_prompt=True,
            **self._options,
        )
        return [_mark(i) in rendered for i in thinking]

    @cached_property
    def _takes_thoughts(self) -> bool:
        """Whether the template shows thoughts that stand in a field of their own."""
        call = _show_call(ToolCall("-", {}, "-"), {})  # with a call, since Kimi's shows the thoughts of no other answer
        answer = {"role": "assistant", "content": "-", "reasoning_content": _mark(0), "tool_calls": [call]}
        try:
            shown = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": "-"}, answer], tokenize=False, **self._options
            )
        except Exception:  # templates raise what they like
            return False
        return _mark(0) in shown

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), after: int | None = None
    ) -> Ids:
        """Return the prompt for the next assistant's message; `tools` have OpenAI's form.

        With `after`, it is the end of the prompt that follows the content of `messages[after]`.

        Raises:
            ValueError: the chat template drops a message or repeats one.
        """
        # Each mark in the text that the template renders stands for the entry of `spliced` with its number. The first
        # entries are the contents of the messages, the others are texts in the arguments of calls.
        spliced: list[Ids | str] = [message.ids for message in messages]
        if any(message.calls or message.call_id for message in messages):
            placeholders = []
            for i, message in enumerate(messages):
                placeholder: dict[str, Any] = {"role": message.role, "content": _mark(i)}
                if message.call_id:
                    placeholder["tool_call_id"] = message.call_id
                if message.calls:
                    placeholder["tool_calls"] = [
                        _show_call(c, _mark_texts(c.arguments, spliced)) for c in message.calls
                    ]
                placeholders.append(placeholder)
            frame = self._frame(placeholders, list(tools), len(spliced))
        else:
            frame = self._frame_roles_cached(tuple([message.role for message in messages]), json.dumps(list(tools)))
        # Beside calls, Llama's template leaves out the text; an empty text is not missed.
        missed = [i for i in frame.missing if i >= len(messages) or (messages[i].ids and not messages[i].calls)]
        if missed or frame.repeats:
            roles = ", ".join(message.role for message in messages)
            raise ValueError(f"the chat template does not show every message once; the roles are {roles}")
        found: list[Ids] = []
        pieces = frame.pieces
        start = 0 if after is None else frame.places[after] + 1
        for i, piece in enumerate(pieces[start:], start):
            if i % 2 == 0:
                content = spliced[int(pieces[i + 1])] if i + 1 < len(pieces) else ()
                none = (
                    _NO_THOUGHTS.search(piece) if i + 1 < len(pieces) and piece.rstrip().endswith(THOUGHT_END) else None
                )
                if none and self._holds_thoughts(content):
                    # What stands before thoughts in a prompt stays; the rest was sampled with them.
                    opened = OPENING.sub("", pieces[-1]).endswith(none[1])
                    piece = piece[: none.end(1) if opened else none.start()]
                found.append(self._encode_markup_cached(piece))
                continue
            index = int(piece) if int(piece) < len(messages) else None
            entry = spliced[int(piece)]
            quoted = pieces[i - 1].endswith('"')
            if quoted and index is not None and messages[index].role == "tool":
                entry = self.tokenizer.decode(entry)  # Llama's template shows the results of tools as JSON
            if isinstance(entry, str):
                entry = self._encode_text(json.dumps(entry, ensure_ascii=False)[1:-1] if quoted else entry)
            found.append(entry)
        return tuple(chain.from_iterable(found))

    def _frame_roles(self, roles: tuple[str, ...], tools: str) -> Frame:
        """Return the frame of messages without calls, given their roles and the tools as JSON."""
        placeholders = [{"role": role, "content": _mark(i)} for i, role in enumerate(roles)]
        return self._frame(placeholders, json.loads(tools), len(roles))

    def _frame(self, placeholders: list[dict[str, Any]], tools: list[Any], contents: int) -> Frame:
        """Return the frame of messages whose `contents` contents and texts of arguments are marks."""
        # Schemas, and names and keys of calls, stay text, into which templates look; words are their own keys, too.
        cut = partial(cut_added_tokens, self.tokenizer, kept=r"\w+|.")
        placeholders, tools = _map_texts([placeholders, tools], cut, cut)
        rendered = self.tokenizer.apply_chat_template(
            placeholders, tools=tools or None, tokenize=False, add_generation_prompt=True, **self._options
        )
        pieces = _MARK.split(rendered)
        places = {int(number): 2 * i + 1 for i, number in enumerate(pieces[1::2])}
        return Frame(pieces, places, tuple(i for i in range(contents) if i not in places))

    def _holds_thoughts(self, entry: Ids | str) -> bool:
        return not isinstance(entry, str) and bool(split_thoughts(self.tokenizer.decode(entry))[0])

    def _encode_markup(self, text: str) -> Ids:
        parts = [part for part in text.split(CUT) if part]
        return tuple(chain.from_iterable(self.tokenizer.encode(part, add_special_tokens=False) for part in parts))


def _mark(number: int) -> str:
    return f"\ue000{number}\ue001"


def _show_call(call: ToolCall, arguments: Any) -> dict[str, Any]:
    """Return a call as chat templates take it."""
    shown_id = {"id": call.shown_id} if call.shown_id else {}
    return {"type": "function", **shown_id, "function": {"name": call.name, "arguments": arguments}}


def _mark_texts(value: Any, spliced: list[Ids | str]) -> Any:
    """Replace every text in a JSON value by a mark, and append the text to `spliced`."""

    def mark(text: str) -> str:
        spliced.append(text)
        return _mark(len(spliced) - 1)

    return _map_texts(value, mark, str)


def _map_texts(value: Any, change: Callable[[str], str], change_key: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change_key(key): _map_texts(part, change, change_key) for key, part in value.items()}
    return [_map_texts(part, change, change_key) for part in value] if isinstance(value, list | tuple) else value
