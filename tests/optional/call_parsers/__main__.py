"""Compares how SGLang's and vLLM's own parsers read generated replies with what was meant, and with what we read.

    pip download --no-deps sglang vllm -d wheels && pip install --target parsers orjson partial-json-parser regex
    for wheel in wheels/*.whl; do unzip -qo $wheel -d parsers; done
    python -m tests.optional.call_parsers parsers

Only their parsers are imported; of all else that they import, stands a record of what it was called with.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import json
import logging
import sys
import types
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from core.text.call_formats import read_reply
from core.text.tool_calls import ToolCall
from tests.kit import train_tokenizer
from tests.unit.gateway.templates import FORMATS, TAGS
from tests.unit.text.test_round_trips import BY_NAME, WRITE, draw, write

STUBBED = ("sglang", "vllm", "openai", "xgrammar", "prometheus_client", "ijson", "mistral_common", "openai_harmony")
FIELDS = ("name", "arguments", "content", "reasoning", "id", "type", "function", "tool_calls")
REAL = ("function_call", "tool_parsers", "parser")
Read = Callable[[str], list[tuple[str, Any]]]


class Record:
    """Stands for any class or function of a server: keeps what it was called with."""

    def __init__(self, *values: Any, **named: Any):
        self.values = values
        self.__dict__.update(named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None if name in FIELDS else Record

    def __class_getitem__(cls, _: Any) -> Any:
        return cls


class Stub(types.ModuleType):
    __path__: list[str]  # set where it is made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("_SECONDS"):
            return 10
        if name.startswith("is_"):
            return lambda *_, **__: False
        setattr(self, name, type(name, (Record,), {}))
        return self.__dict__[name]


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stub for each module of the servers that is no parser."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        package, _, rest = name.partition(".")
        if package not in STUBBED:
            return None
        if any(part in REAL for part in rest.split(".")) and not name.endswith((".tool_parsers", ".parser")):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        module = Stub(spec.name)
        folder = spec.name.replace(".", "/")
        module.__path__ = [f"{place}/{folder}" for place in sys.path]
        return module

    def exec_module(self, module: Any) -> None:
        pass


def load_sglang(name: str, detector: str) -> Read:
    module = importlib.import_module(f"sglang.srt.function_call.{name}")
    function = Record(name=WRITE.name, parameters=WRITE.parameters, strict=False)
    tools = [Record(type="function", function=function)]

    def read(text: str) -> list[tuple[str, Any]]:
        found = getattr(module, detector)().detect_and_parse(text, tools)
        return [(call.name, json.loads(call.parameters)) for call in found.calls]

    return read


def load_vllm(name: str, parser: str) -> Read:
    if parser == "Qwen3Parser":  # the module of its adapter imports the parsers of all models
        adapters = importlib.import_module("vllm.parser.engine.adapters")
        chosen = adapters.make_adapters(getattr(importlib.import_module("vllm.parser.qwen3"), parser))[1]
    else:
        chosen = getattr(importlib.import_module(f"vllm.tool_parsers.{name}"), parser)
    tokenizer = train_tokenizer("a", 300, added=[*TAGS, "<|python_tag|>"])
    protocol = importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol")
    function = Record(name=WRITE.name, parameters=WRITE.parameters)
    tools = [protocol.ChatCompletionToolsParam(type="function", function=function)]

    def read(text: str) -> list[tuple[str, Any]]:
        request = Record(tools=tools, tool_choice="auto", skip_special_tokens=False, include_reasoning=True)
        found = chosen(tokenizer, tools).extract_tool_calls(text, request)
        return [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls]

    return read


PARSERS: Sequence[tuple[str, str, Callable[..., Read], tuple[str, str]]] = (
    ("sglang", "qwen3", load_sglang, ("qwen25_detector", "Qwen25Detector")),
    ("sglang", "qwen3_coder", load_sglang, ("qwen3_coder_detector", "Qwen3CoderDetector")),
    ("sglang", "llama3", load_sglang, ("llama32_detector", "Llama32Detector")),
    ("vllm", "qwen3", load_vllm, ("hermes_tool_parser", "Hermes2ProToolParser")),
    ("vllm", "qwen3_coder", load_vllm, ("qwen3", "Qwen3Parser")),
    ("vllm", "llama3", load_vllm, ("llama_tool_parser", "Llama3JsonToolParser")),
)


def describe(read: Sequence[tuple[str, Any]], calls: Sequence[ToolCall], error: str | None = None) -> str:
    """Say how what was read differs from what was meant."""
    if error is not None:
        return f"refused: {error}"
    meant = [(call.name, dict(call.arguments)) for call in calls]
    if json.dumps(list(read)) == json.dumps(meant):
        return "as meant"
    if len(read) != len(meant):
        return "calls are lost" if len(read) < len(meant) else "calls are made up"
    pairs = [(a[1].get(k, ...), b[1].get(k, ...)) for a, b in zip(read, meant, strict=True) for k in {**a[1], **b[1]}]
    if any(... in pair for pair in pairs):
        return "arguments are lost or made up"
    differ = [(a, b) for a, b in pairs if json.dumps(a) != json.dumps(b)]
    kinds = sorted({f"{type(b).__name__} becomes {type(a).__name__}" for a, b in differ if type(a) is not type(b)})
    return ", ".join(kinds) or "texts differ"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.optional.call_parsers")
    parser.add_argument("folder", help="where the wheels of SGLang and vLLM are unpacked")
    parser.add_argument("--replies", type=int, default=2000)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    sys.path.append(options.folder)
    sys.meta_path.insert(0, Stubs())
    for server, template, load, names in PARSERS:
        try:
            theirs = load(*names)
        except Exception as error:
            print(f"{server} {names[1]}: cannot be imported: {error!r}")
            continue
        rng, counts, first = Random(template), Counter[tuple[str, str]](), dict[str, str]()
        for _ in range(options.replies):
            meant = draw(rng, 1 if template == "llama3" else 3)
            if not meant.calls:
                continue
            meant.text = ""
            text = write(template, meant)
            reply = read_reply(text, BY_NAME[FORMATS[template]], [WRITE])
            ours = describe(
                [(c.name, dict(c.arguments)) for c in reply.calls], meant.calls, reply.error and reply.error.kind
            )
            try:
                told = describe(theirs(text), meant.calls)
            except Exception as error:
                told = f"raises {type(error).__name__}"
            counts[told, ours] += 1
            first.setdefault(told, text)
        print(f"\n{server} {names[1]}, {counts.total()} replies with calls")
        for (told, ours), count in counts.most_common(12):
            print(f"  {count:5}  theirs: {told:45.45}  ours: {ours}")


if __name__ == "__main__":
    main()
