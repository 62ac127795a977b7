r"""Serves the experts of the preset `tiny`: small programs behind a real HTTP service with OpenAI's protocol.

    python -m agentic.toolorchestra.scripted_experts --port 30001

Each expert reads the text of the request, as a language model would, and answers by its own skill.

| model | knows facts | computes | when it cannot |
|---|---|---|---|
| sage | all of them | plus, minus, times | |
| abacus | those in the text | plus, minus | "unknown"; is one factor off |
| reader | those in the text | nothing | "unknown"; repeats the first number |
| scout | writes search queries | | repeats the question |

Every fact is drawn by its name, so only the corpus, or an expert who knows the facts, can tell it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from aiohttp import web
from pydantic import BaseModel, Field, ValidationError

from core.serving import ListenError, add_address_options, describe_invalid, make_app, read_api_key

ATTRIBUTES = ("price", "weight", "length", "width", "age", "speed", "rank", "score")
THINGS = """
    anchor apple basket bell bench blanket boat bottle brick broom brush bucket button camera candle canoe carpet
    cart chain chair chest clock coat compass cradle crane crown curtain cushion desk drum engine fan feather fence
    flag flute fork frame globe glove guitar hammer harp hat helmet jacket jar kettle kite knife ladder lamp lantern
    mirror nail needle oven paddle pencil piano pillow pipe plate pump purse ribbon ring rope ruler saddle sail
    scarf shell shield shoe shovel spoon table tent
    """.split()
OPERATIONS = ("plus", "minus", "times")
UNKNOWN = "unknown"

_OPERAND = r"(\d+|the \w+ of \w+)"
_LETTER = re.compile(r"What is the (first|last) letter of (\w+)\?")
_VALUE = re.compile(rf"What is {_OPERAND}(?: ({'|'.join(OPERATIONS)}) {_OPERAND})?\?")
_STATED = re.compile(r"The (\w+ of \w+) is (\d+)\.")


@dataclass(frozen=True, slots=True)
class ScriptedExpert:
    knows: bool
    computes: tuple[str, ...]


EXPERTS: Mapping[str, ScriptedExpert] = {
    "sage": ScriptedExpert(knows=True, computes=OPERATIONS),
    "abacus": ScriptedExpert(knows=False, computes=("plus", "minus")),
    "reader": ScriptedExpert(knows=False, computes=()),
}
SCOUT = "scout"

MAX_BODY_BYTES = 1 << 20


class ChatMessage(BaseModel):
    content: str


class ChatBody(BaseModel):
    """Holds what the experts read of a request; they ignore how it wants to be sampled."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)


def fact_value(fact: str) -> int:
    """Return the two digits of a fact such as `price of lamp`. Raises KeyError for any other text."""
    match = re.fullmatch(r"(\w+) of (\w+)", fact)
    if not match or match[1] not in ATTRIBUTES or match[2] not in THINGS:
        raise KeyError(fact)
    return Random(f"value of the {fact}").randint(10, 99)


def reply(model: str, text: str) -> str:
    """Write the reply of `model` to `text`. Raises ValueError for a text without a question of the tiny preset."""
    if model == SCOUT:
        return search_query(text)
    stated = {fact: int(value) for fact, value in _STATED.findall(text)}
    return f"The answer is \\boxed{{{answer(EXPERTS[model], text, stated)}}}."


def answer(expert: ScriptedExpert, text: str, stated: Mapping[str, int]) -> str:
    """Answer the question in `text`; `stated` are the facts that came with it."""
    if letter := _LETTER.search(text):
        return letter[2][0 if letter[1] == "first" else -1]
    match = _VALUE.search(text)
    if not match:
        raise ValueError(f"no question of the tiny preset (agentic/toolorchestra/world.py) in {text[:200]!r}")
    left = _number(expert, match[1], stated)
    if match[2] is None or not expert.computes:
        return str(left)
    right = _number(expert, match[3], stated)
    if not isinstance(left, int) or not isinstance(right, int):
        return UNKNOWN
    slip = 0 if match[2] in expert.computes else 1
    return str({"plus": left + right, "minus": left - right, "times": left * (right + slip)}[match[2]])


def search_query(text: str) -> str:
    """Return the facts to look up for the question, or the question itself if there are none."""
    match = _VALUE.search(text)
    operands = (match[1], match[3]) if match else ()
    return " ".join(part.removeprefix("the ") for part in operands if part and not part.isdigit()) or text


def _number(expert: ScriptedExpert, operand: str, stated: Mapping[str, int]) -> int | str:
    if operand.isdigit():
        return int(operand)
    fact = operand.removeprefix("the ")
    if expert.knows:
        try:
            return fact_value(fact)
        except KeyError:
            return UNKNOWN
    return stated.get(fact, UNKNOWN)


def make_service(api_key: str | None = None) -> web.Application:
    service = make_app(max_body_bytes=MAX_BODY_BYTES, api_key=api_key)
    service.add_routes([web.post("/v1/chat/completions", _complete), web.get("/health", _health)])
    return service


async def _complete(request: web.Request) -> web.Response:
    try:
        body = ChatBody.model_validate_json(await request.read())
    except ValidationError as error:
        return _error(400, describe_invalid(error))
    model, text = body.model, "\n".join(message.content for message in body.messages)
    if model not in EXPERTS and model != SCOUT:
        return _error(404, f"there is no model {model!r}; there are {', '.join((*EXPERTS, SCOUT))}")
    try:
        content = reply(model, text)
    except ValueError as error:
        return _error(400, str(error))
    usage = {"prompt_tokens": count_tokens(text), "completion_tokens": count_tokens(content)}
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return web.json_response({"object": "chat.completion", "model": model, "choices": [choice], "usage": usage})


async def _health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok", "models": [*EXPERTS, SCOUT]})


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)


def count_tokens(text: str) -> int:
    """Count words and punctuation marks."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Serve the tiny preset's experts.")
    add_address_options(parser, 30001)
    options = parser.parse_args(arguments)
    try:
        service = make_service(read_api_key(options.host, options.api_key_file))
    except ListenError as error:
        sys.exit(str(error))
    web.run_app(service, host=options.host, port=options.port, access_log=None)


if __name__ == "__main__":
    main()
