"""Makes bad requests from the schema of a server's bodies: extreme values, junk, broken JSON, broken HTTP."""

from __future__ import annotations

import json
from random import Random
from typing import Any

NUMBERS = (
    0, 1, 2, -1, 7, 63, 1 << 31, 1 << 63, -(1 << 63), 10**400, 0.5, 1.0, 1e-40, 1e308, float("nan"), float("inf"),
)  # fmt: skip
TEXTS = ("", "a", "fox", "What is 3 plus 4?", "sage", "x" * 3000, "\ud800", "\0", "../..", "NaN", "/")
JUNK = (None, True, [], {}, [[]], {"a": [{}]}, *NUMBERS, *TEXTS)


def make_value(rng: Random, schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """Make a value that fits the schema more often than not."""
    if rng.random() < 0.06:
        return rng.choice(JUNK)
    if "$ref" in schema:
        return make_value(rng, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema:
        return make_value(rng, rng.choice(schema["anyOf"]), root)
    match schema.get("type"):
        case "object":
            body = {
                name: make_value(rng, field, root)
                for name, field in schema.get("properties", {}).items()
                if rng.random() < (0.95 if name in schema.get("required", ()) else 0.25)
            }
            return body if rng.random() < 0.95 else {**body, rng.choice(TEXTS): rng.choice(JUNK)}
        case "array":
            return [make_value(rng, schema["items"], root) for _ in range(rng.choice((0, 1, 1, 2, 5)))]
        case "boolean":
            return rng.random() < 0.5
        case "integer" | "number":
            return rng.choice((1, 2, 3, 7)) if rng.random() < 0.8 else rng.choice(NUMBERS)
        case "string":
            return rng.choice(TEXTS)
    return rng.choice(JUNK)


def make_request(rng: Random, path: str, schema: dict[str, Any], good: dict[str, Any]) -> bytes:
    """Make the bytes of one request to `path`, whose bodies have the schema; some have the fields of a `good` one."""
    value = make_value(rng, schema, schema)
    if isinstance(value, dict) and rng.random() < 0.5:
        value = {**good, **value} if rng.random() < 0.5 else {**value, **good}
    body = json.dumps(value).encode()
    if rng.random() < 0.15:
        cut = rng.randrange(len(body) + 1)
        body = rng.choice(
            (body[:cut], body[:cut] + bytes([rng.randrange(256)]) + body[cut:], b"[" * 5000, b"", b"\xff")
        )
    headers = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(body))}
    if rng.random() < 0.15:
        name, value = rng.choice(
            (
                ("Host", "evil.example"), ("Host", ""), ("Origin", "http://a.example"), ("Content-Type", "text/plain"),
                ("Content-Type", ";"), ("Content-Length", "-1"), ("Content-Length", str(len(body) + 9)),
                ("Content-Length", "x"), ("Content-Encoding", "gzip"), ("Content-Encoding", "deflate"),
                ("Transfer-Encoding", "chunked"), ("Expect", "x"), ("X-SMG-Routing-Key", "\xe9" * 50),
            )
        )  # fmt: skip
        headers[name] = value
    method, path = rng.choices(((("POST", path)), ("GET", path), ("PUT", path), ("POST", path + "/..")), (30, 1, 1, 1))[
        0
    ]
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode("latin-1") + body
