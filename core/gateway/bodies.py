"""Reads the fields of a request body: each is honoured, known to be without meaning here, or refused with its path."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from core.gateway.messages import GatewayError, refuse, refuse_part
from core.text.tool_calls import ToolSchema

T = TypeVar("T")

MAX_REMEMBERED_BYTES = 1 << 24
"""Bounds the bytes of all values that one function remembers."""
MAX_TOOL_BYTES = 1 << 14
"""Bounds the bytes of a tool that is remembered."""

FORCED = "would have to be forced while sampling, which is not implemented"
"""Says why a tool that must be called is refused."""

_LONG_LISTS = ("messages", "input", "tools")
_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_value = msgspec.json.Decoder().decode


def parse_body(written: bytes) -> Any:
    """Parse the JSON of a request. The items of its long lists stay as they were written, for `remember`.

    They are plain values too if any part of the body is one that only Python reads, such as NaN. Raises GatewayError
    for what is no JSON.
    """
    try:
        fields = _read_fields(written)
        return {
            name: _read_items(value) if name in _LONG_LISTS and memoryview(value)[:1] == b"[" else _read_value(value)
            for name, value in fields.items()
        }
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return parse_json(written, "body")


def parse_json(written: bytes, path: str) -> Any:
    """Parse any JSON. Raises GatewayError for what is none."""
    # msgspec takes half of the time, and keeps large integers exact; Python also reads NaN and halves of characters.
    try:
        return _read_value(written)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        return json.loads(written)
    except (ValueError, RecursionError) as error:
        raise refuse(path, f"is no JSON ({error})"[:200]) from error


class Body:
    """Holds one JSON object of a request and its path. What nobody has read at the end is refused by `close`."""

    def __init__(self, value: Any, path: str = ""):
        if not isinstance(value, dict):
            raise refuse(path or "body", "must be a JSON object")
        self._rest: dict[str, Any] = dict(value)
        self.path = path

    def at(self, name: str | int) -> str:
        """Return the path of a field."""
        return f"{self.path}.{name}" if self.path else str(name)

    def take(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """Read a field; null counts as absent."""
        value = self._rest.pop(name, None)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            wanted = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
            raise refuse(self.at(name), f"must be of type {wanted}, is {type(value).__name__}")
        return value

    def need(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Read a field that must be there."""
        value = self.take(name, kind)
        if value is None:
            raise refuse(self.at(name), "is missing")
        return value

    def take_body(self, name: str) -> Body:
        """Read an object; it has no fields if it is absent."""
        return Body(self.take(name, dict, {}), self.at(name))

    def need_body(self, name: str) -> Body:
        """Read an object that must be there."""
        return Body(self.need(name, dict), self.at(name))

    def take_number(self, name: str, low: float, high: float = float("inf")) -> float | None:
        """Read a number within bounds."""
        value = self.take(name, (int, float))
        if value is not None and not low <= value <= high:
            raise refuse(self.at(name), f"must lie between {low:g} and {high:g}, is {value!r}")
        return value

    def take_count(self, name: str, *, needed: bool = False) -> int | None:
        """Read a positive integer."""
        value = self.need(name, int) if needed else self.take(name, int)
        if value is not None and value < 1:
            raise refuse(self.at(name), f"must be at least 1, is {value}")
        return value

    def take_only(self, name: str, *allowed: Any, why: str = "is not implemented") -> Any:
        """Read a field that may have the `allowed` values alone, because another one would change the answer."""
        value = self._rest.pop(name, None)
        if value is not None and value not in allowed:
            shown = ", ".join(json.dumps(each) for each in allowed)
            raise refuse(self.at(name), f"{json.dumps(value)[:80]} {why}; only {shown}")
        return value

    def take_stops(self, name: str) -> tuple[str, ...]:
        """Read a stop text or a list of them."""
        value = self.take(name, (str, list), [])
        stops = [value] if isinstance(value, str) else value
        if not all(isinstance(stop, str) and stop for stop in stops):
            raise refuse(self.at(name), "every stop must be a text that is not empty")
        return tuple(stops)

    def take_format(self, name: str) -> bool:
        """Read in which form the client wants the answer; return whether that is JSON."""
        wanted = self.take_body(name)
        kind = wanted.take_only("type", "text", "json_object", "json_schema")
        wanted.close("json_schema", "name", "schema", "strict", "description")
        return kind not in (None, "text")

    def take_each(self, name: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
        """Read a list; `read` gets each value and its path."""
        path = self.at(name)
        return tuple([read(value, f"{path}.{i}") for i, value in enumerate(self.take(name, list, []))])

    def close(self, *without_effect: str) -> None:
        """Refuse a field that nobody has read, unless it is off or does not change the answer.

        Raises:
            GatewayError: there is such a field.
        """
        for name, value in self._rest.items():
            if name not in without_effect and value not in (None, False, [], {}, ""):
                raise refuse(self.at(name), "is not implemented")


def remember(read: Callable[[Body], T], max_bytes: int = 1 << 12) -> Callable[[Any, str], T]:
    """Make a function that reads an item of a list, and remembers it: a client sends all of them with every request.

    An item that is parsed already, or has more than `max_bytes`, is read anew.
    """
    read_again = lru_cache(MAX_REMEMBERED_BYTES // max_bytes)(lambda written: read(Body(parse_json(written, ""))))

    def read_item(value: Any, path: str) -> T:
        if not isinstance(value, msgspec.Raw):
            return read(Body(value, path))
        written = bytes(value)
        if len(written) <= max_bytes:
            try:
                return read_again(written)
            except GatewayError:
                pass  # it is read once more for the path in the error
        return read(Body(parse_json(written, path), path))

    return read_item


def read_text(value: Any, path: str, kinds: Collection[str], between: str = "\n") -> str:
    """Read a content: a text, or a list of parts of the given kinds. Parts of an answer have nothing between them."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refuse(path, "must be a text or a list of parts")
    texts = []
    for i, item in enumerate(value):
        part = Body(item, f"{path}.{i}")
        kind = part.need("type", str)
        if kind not in kinds:
            raise refuse_part(part.at("type"), kind, kinds)
        texts.append(part.take("text", str, ""))
        part.close("cache_control", "annotations", "citations", "logprobs")
    return between.join(filter(None, texts))


def read_schema(
    name: str, description: str | None, parameters: Mapping[str, Any] | None, *, strict: bool = False
) -> ToolSchema:
    """Make the schema of a tool from its parts."""
    return ToolSchema(name, description or "", parameters or {"type": "object", "properties": {}}, strict)
