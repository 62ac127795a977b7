"""Turns messages into token ids and sampled ids into replies, through a tokenizer and its chat template."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, get_args

from core.gateway.history import Answer, Continuation
from core.gateway.messages import MessageRole, WireMessage, refuse
from core.gateway.settings import History
from core.text.call_formats import CallFormat, Reply, detect_format, read_reply
from core.text.conversation import Message, Renderer
from core.text.tokenizer import Ids, Tokenizer, end_ids, special_ids
from core.text.tool_calls import CallError, ToolCall, ToolSchema, count_thought_ids, find_opening, parse_json
from core.types import Completion

_BARE: Mapping[str, Message] = {role: Message(role, ()) for role in get_args(MessageRole)}


class Transcriber:
    """Turns messages into prompts and completions into replies, for one tokenizer and its chat template."""

    def __init__(self, tokenizer: Tokenizer, options: Mapping[str, Any] | None = None):
        self.tokenizer = tokenizer
        self.renderer = Renderer(tokenizer, options)
        self.call_format: CallFormat | None = detect_format(tokenizer)
        self._ends = end_ids(tokenizer)
        self._checked_tools: deque[tuple[ToolSchema, ...]] = deque(maxlen=64)
        self._special_texts = [tokenizer.decode([i]) for i in sorted(special_ids(tokenizer))]

    def check_tools(self, tools: tuple[ToolSchema, ...]) -> None:
        """Raise GatewayError for tools that the chat template cannot show, or that would forge its structure."""
        if tools and self.call_format is None:
            raise refuse("tools", "the chat template of this model shows no tool calls in a format that is known here")
        if tools not in self._checked_tools:
            self._check_plain(json.dumps([tool.to_openai() for tool in tools], ensure_ascii=False), "tools")
            self._checked_tools.append(tools)

    def _check_plain(self, text: str, path: str) -> None:
        """Raise GatewayError if a text that the template writes itself would forge the structure of the prompt."""
        for special in (*self._special_texts, "\ue000"):
            if special and special in text:
                raise refuse(path, f"a name or description holds the special token {special!r}")

    @cached_property
    def _shows_every_system(self) -> bool:
        """Whether the template shows a second system message, and one in the middle of a conversation."""
        roles = ("system", "system", "user", "assistant", "system", "user")
        try:
            self.renderer.render([self.renderer.message(role, "-") for role in roles])
        except Exception:  # templates raise what they like
            return False
        return True

    def gather_system(self, continuation: Continuation) -> Continuation:
        """Return a continuation that the template can show: with all system messages in the first, if it must be.

        So do the servers of Qwen's and MiniMax' makers, whose templates raise at a second one, and DeepSeek's template.
        """
        messages = continuation.messages
        places = [i for i, message in enumerate(messages) if message.role == "system"]
        if places in ([], [0]) or self._shows_every_system:
            return continuation
        first = WireMessage("system", "\n\n".join(messages[i].text for i in places))
        others = [i for i, message in enumerate(messages) if message.role != "system"]
        moved = {old: new for new, old in enumerate(others, 1)}
        return replace(
            continuation,
            messages=(first, *(messages[i] for i in others)),
            entries=(first, *(continuation.entries[i] for i in others)),
            # A system message that is new changes the prompt's beginning, so no earlier answer's prompt is continued.
            path=tuple([moved[i] for i in continuation.path if i > places[-1]]),
        )

    def order_results(self, continuation: Continuation) -> Continuation:
        """Return a continuation whose results stand in the order of their calls, where the template shows no ids."""
        messages = continuation.messages
        order, places = list(range(len(messages))), dict[str, int]()
        for i, message in enumerate(messages):
            if message.role == "assistant":
                places = places if i and messages[i - 1].role == "assistant" else {}
                places |= {call.call_id: n for n, call in enumerate(message.calls, len(places))}
            elif message.role == "tool" and (i == 0 or messages[i - 1].role != "tool"):
                end = next((j for j in range(i, len(messages)) if messages[j].role != "tool"), len(messages))
                order[i:end] = sorted(order[i:end], key=lambda j: places.get(messages[j].call_id, len(places)))
        if self.renderer.shows_ids or order == sorted(order):
            return continuation
        return replace(
            continuation,
            messages=tuple([messages[i] for i in order]),
            entries=tuple([continuation.entries[i] for i in order]),
        )

    def render(
        self, continuation: Continuation, tools: tuple[ToolSchema, ...], history: History
    ) -> tuple[Ids, tuple[bool, ...]]:
        """Return the prompt of a request, and for each stored answer in it whether it keeps its thoughts."""
        shown_tools = [tool.to_openai() for tool in tools]
        bare = [_BARE[message.role] for message in continuation.messages]
        answers = {i: entry for i, entry in enumerate(continuation.entries) if isinstance(entry, Answer)}
        call_ids = self._find_call_ids(continuation)
        hidden: set[int] = set()
        if history == "template":
            thinking = [i for i, answer in answers.items() if answer.reasoning_tokens]
            told = [
                replace(each, calls=tuple(ToolCall(call.name, {}, call_ids[call.call_id]) for call in message.calls))
                if call_ids
                else each
                for each, message in zip(bare, continuation.messages, strict=True)
            ]
            shown = self.renderer.find_shown_thoughts(told, thinking, shown_tools) if thinking else []
            hidden = {i for i, shows in zip(thinking, shown, strict=True) if not shows}
        kept = tuple([i not in hidden for i in answers])
        # The prompt goes on from the last answer before which nothing has changed since it was sampled.
        order = {i: n for n, i in enumerate(answers)}
        base, start = None, -1
        for i in reversed(continuation.path):
            answer, n = answers[i], order[i]
            if kept[n] and answer.kept == kept[:n] and answer.tools == tools:
                base, start = answer, i
                break
        messages = bare[: start + 1]
        for i, entry in enumerate(continuation.entries[start + 1 :], start + 1):
            if isinstance(entry, Answer):
                messages.append(self.encode_sampled(entry, i not in hidden))
            else:
                messages.append(self.encode_message(entry, call_ids))
        if base is None:
            return self.renderer.render(messages, shown_tools), kept
        tail = self.continue_after(base.completion, self.renderer.render(messages, shown_tools, after=start))
        return base.prompt_ids + (base.completion.token_ids + tail), kept  # copies the long part once

    def read(
        self, prompt_ids: Ids, completion: Completion, tools: Sequence[ToolSchema], stop: Sequence[str]
    ) -> tuple[Reply, int, str | None]:
        """Read the completion of a prompt; return the reply, how many tokens are thoughts, and its stop text if any."""
        ids, opening = self.content(completion), find_opening(self.tokenizer, prompt_ids)
        text = self.tokenizer.decode(ids)
        found = min((place, end) for end in ("", *stop) if (place := text.find(end) if end else len(text)) >= 0)
        text = opening + text[: found[0]]
        thoughts = count_thought_ids(self.tokenizer, ids, opening) or 0
        cut = completion.finish_reason == "length" or bool(found[1])
        reply = read_reply(text, self.call_format, tools, cut=cut)
        return reply, thoughts, found[1] or None

    def content(self, completion: Completion) -> Ids:
        """Return a completion's ids without the end token, which the template writes itself."""
        ids = completion.token_ids
        return ids[:-1] if ids and ids[-1] in self._ends else ids

    def encode_sampled(self, answer: Answer, keep_thoughts: bool) -> Message:
        """Make the message of a stored answer from its ids."""
        ids = self.content(answer.completion)
        if not keep_thoughts:
            return Message("assistant", ids[answer.reasoning_tokens :])
        return Message("assistant", (*self.renderer.find_opening(answer.prompt_ids), *ids))

    def _find_call_ids(self, continuation: Continuation) -> dict[str, str]:
        """Return the id that a template like Kimi's shows for each call, by its id on the wire: as the model wrote it.

        Calls that no policy sampled here have the number of the calls before them. Other templates show none.
        """
        found: dict[str, str] = {}
        for message, entry in zip(continuation.messages, continuation.entries, strict=True):
            written = entry.shown_ids if isinstance(entry, Answer) else ()
            for i, call in enumerate(message.calls if self.renderer.shows_ids else ()):
                found[call.call_id] = written[i] if i < len(written) else f"functions.{call.name}:{len(found)}"
        return found

    def encode_message(self, message: WireMessage, call_ids: Mapping[str, str]) -> Message:
        """Encode a message that no policy sampled here; its calls are left to the template."""
        calls = []
        for call in message.calls:
            arguments = parse_json(call.arguments or "{}")
            if isinstance(arguments, CallError) or not isinstance(arguments, dict):
                raise refuse("messages", f"the arguments of call {call.call_id!r} are no JSON object")
            self._check_plain(" ".join((call.name, *list_keys(arguments))), "messages")
            calls.append(ToolCall(call.name, arguments, call_ids.get(call.call_id, "")))
        call_id = call_ids.get(message.call_id or "", "")
        return replace(self.renderer.message(message.role, message.text), calls=tuple(calls), call_id=call_id)

    def continue_after(self, completion: Completion, tail: Ids) -> Ids:
        """Return what follows a completion in the next prompt: `tail`, less an end token that was sampled already."""
        ended = bool(completion.token_ids) and completion.token_ids[-1] in self._ends
        if tail[:1] not in (completion.token_ids[-1:], (self.tokenizer.eos_token_id,)):
            return tail  # a role's token that GLM did not sample, and not an end token in the place of another
        return tail[1:] if ended and tail and tail[0] in self._ends else tail


def list_keys(value: Any) -> list[str]:
    """List the keys of all objects within a JSON value."""
    if isinstance(value, dict):
        return [*value, *(key for part in value.values() for key in list_keys(part))]
    return [key for part in value for key in list_keys(part)] if isinstance(value, list) else []
