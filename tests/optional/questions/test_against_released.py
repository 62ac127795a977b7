"""Our rollout of FRAMES and HLE asks the same models the same things as the released code, and grades alike.

UPSTREAM_DIR=FOLDER pytest tests/optional/questions    # FOLDER/OWNER/NAME is a clone, or FOLDER/OWNER+NAME/repo

Both codes play the same random script: replies of orchestrator and experts, passages, outputs of programs. Of the
released code the functions are taken from its syntax tree, with its models, its searches and its programs replaced.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentic.toolorchestra.rollout import SPEC
from benchmarks.questions.method import ReleasedQuestions
from benchmarks.questions.prompts import Data, read_tools
from core.policy.base import Roles
from core.policy.openai_chat import ChatReply
from core.tools.base import ToolResult
from core.types import Completion, Sampling, Task
from tests.golden.prompts.make_golden import read_upstream
from tests.golden.prompts.upstream import SOURCES
from tests.kit import train_tokenizer

FOLDER = os.environ.get("UPSTREAM_DIR")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="UPSTREAM_DIR names no folder with the authors' repositories")
GAMES = 60
WORDS = ("red", "Blue", "ein längeres Wort", "12", "```", "Doc 1:", "<answer>", "x = 1", "\n", "世界")
TOOLS = {"search": 3, "enhance_reasoning": 3, "answer": 4}


class Script:
    """Draws everything that both codes hear, in the order in which they ask."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.asked: list[Any] = []

    def text(self, length: int) -> str:
        return " ".join(self.rng.choice(WORDS) for _ in range(self.rng.randint(0, length)))

    def orchestrate(self, messages: Any, tools: Any) -> str:
        self.asked.append(("policy", messages, tools))
        tool = self.rng.choice([*TOOLS, "nothing"])
        name = {"search": "search", "enhance_reasoning": "reasoner", "answer": "answer"}.get(tool, "x")
        aliases = [f"{name}-{number}" for number in range(1, TOOLS.get(tool, 1) + 1)]
        aliases += ["answer-math-1", "answer-math-2"] if tool == "answer" else []
        calls = [{"name": tool, "arguments": {"model": self.rng.choice([*aliases, "unknown"])}}]
        if self.rng.random() < 0.2:
            calls.append({"name": "answer", "arguments": {"model": "answer-1"}})
        if self.rng.random() < 0.1:
            return self.text(4).replace("<", "")
        return "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)

    def expert(self, model: str, messages: Any) -> str:
        self.asked.append((model, messages))
        if "Student answer" in messages[-1]["content"]:
            return self.rng.choice(["<correct>True</correct>", "<correct>false</correct>", "True", "no"])
        body = self.text(6)
        forms = [
            f"<query>{body} and more</query>",
            f"```python\n{body}\n```",
            f"\\boxed{{{body}}}",
            f"<answer>{body}</answer>",
        ]
        return self.rng.choice([*forms, "\\boxed{Ada}", "<answer> ada </answer>", "<answer></answer>", "a", ""])

    def passages(self, query: str) -> list[str]:
        self.asked.append(("search", query))
        return [f"{self.rng.randint(0, 5)}\n{self.text(900).strip()}" for _ in range(self.rng.randint(1, 3))]

    def output(self, program: str) -> str:
        self.asked.append(("program", program))
        return self.rng.choice(["", "12\n", self.text(2000).strip() + "."])


def play_released(data: Data, seed: int, tokenizer: Any, tools: list[Any]) -> tuple[Any, Any]:
    """Play the released code's run_single, and return what was asked and whether it was right."""
    source = next(source for source in SOURCES if source.name == f"toolorchestra/{data}/choose")
    tree = ast.parse(read_upstream(Path(str(FOLDER)), source))
    kept = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("MODEL_MAPPING", "ALL_TOOLS"))
    ]
    script = Script(seed)

    def respond(model: str, messages: Any, tools: Any = None, return_raw_response: bool = False, **_: Any) -> Any:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if model != "policy":
            text = script.expert(model, messages)
            message = SimpleNamespace(content=text)
            return SimpleNamespace(choices=[SimpleNamespace(message=message)]) if return_raw_response else text
        text = script.orchestrate(messages, tools)
        calls = [json.loads(part.partition("</tool_call>")[0]) for part in text.split("<tool_call>")[1:]]
        made = [
            SimpleNamespace(function=SimpleNamespace(name=call["name"], arguments=json.dumps(call["arguments"])))
            for call in calls
        ]
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=text, tool_calls=made))])

    class Encoder:
        def __call__(self, text: str) -> Any:
            return {"input_ids": tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]}

        def batch_decode(self, ids: list[int], skip_special_tokens: bool) -> list[str]:
            return [tokenizer.decode([token], skip_special_tokens=skip_special_tokens) for token in ids]

    def post(url: str, json: Any) -> Any:
        found = script.passages(json["queries"][0])
        return SimpleNamespace(json=lambda: [[{"document": {"contents": text}} for text in found]])

    written: dict[str, str] = {}

    class File:
        def __init__(self, path: str):
            self.path = path

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def write(self, text: str) -> None:
            written[self.path] = written.get(self.path, "") + text

    def run(words: list[str], **_: Any) -> Any:
        return SimpleNamespace(stdout=script.output(written.pop(words[1])))

    names: dict[str, Any] = {
        "os": SimpleNamespace(path=SimpleNamespace(join=os.path.join, isdir=lambda _: True, isfile=lambda _: False)),
        "json": json, "random": random, "asyncio": asyncio, "time": SimpleNamespace(time=lambda: 0.0, sleep=None),
        "requests": SimpleNamespace(post=post), "subprocess": SimpleNamespace(run=run), "tokenizer": Encoder(),
        "get_llm_response": respond, "raw_tools": tools, "my_output_dir": "out", "MODEL_NAME": "policy",
        "MAX_ROUNDS": 12, "open": lambda path, *_: File(path), "print": lambda *_: None,
        "vllm_model_configs": {
            "policy": None, "vllm_model_config_path": None, "retrieval": [{"ip_addr": "x", "port": 1}],
            **dict.fromkeys(SPEC.load("published").toolorchestra.models),
        },
    }  # fmt: skip
    header = ast.parse(
        "from typing import *\nimport contextlib\nfrom concurrent.futures import ThreadPoolExecutor\n"
    ).body
    exec(compile(ast.Module([*header, *kept], []), source.file, "exec"), names)
    example = {"question": "Who wrote it, 世界?", "answer": "Ada", "id": "q", "eid": 0}
    return script.asked, names["run_single"](example)["correct"]


async def play_ours(data: Data, seed: int, tokenizer: Any) -> tuple[Any, Any]:
    """Play our rollout with the same script."""
    recipe = SPEC.load("published", ["toolorchestra.max_turns=12"])
    method, script = ReleasedQuestions(recipe, tokenizer, data), Script(seed)
    shown: list[Any] = []
    render = method.renderer.render

    def keep(messages: Any, tools: Any = ()) -> Any:
        shown.append(([{"role": m.role, "content": tokenizer.decode(m.ids)} for m in messages], list(tools)))
        return render(messages)

    method.renderer.render = keep  # type: ignore[method-assign]

    class Policy:
        async def generate(self, prompt: Any, sampling: Sampling, session: str | None = None) -> Completion:
            ids = tuple(tokenizer(script.orchestrate(*shown[-1]), add_special_tokens=False)["input_ids"])
            return Completion(ids, (0.0,) * len(ids), "stop")

    class Models:
        config = method.config

        async def ask(self, name: str, messages: Any, tools: Any = ()) -> ChatReply:
            model = method.config.models[name].name or name
            return ChatReply(script.expert(model, [dict(message) for message in messages]))

    async def run(name: str, query: str) -> ToolResult:
        if name == "search":
            return ToolResult("ok", "-", parts=tuple(script.passages(query)))
        return ToolResult("ok", script.output(query))

    method.models = cast(Any, SimpleNamespace(for_rollout=lambda *_: Models()))
    method.tools = cast(Any, SimpleNamespace(run=run))
    task = Task("q", "Who wrote it, 世界?", ("Ada",))
    trajectory = await method.rollout(task, Roles({"policy": cast(Any, Policy())}), Sampling())
    return script.asked, bool(trajectory.reward)


@pytest.mark.parametrize("data", ["frames", "hle"])
def test_both_codes_ask_the_same_and_grade_alike(data: Data) -> None:
    tokenizer = train_tokenizer("Problem: Who wrote it? Choose an appropriate tool. Doc 1: red Blue", 320)
    right = 0
    for seed in range(GAMES):
        theirs = play_released(data, seed, tokenizer, list(read_tools()))
        ours = asyncio.run(play_ours(data, seed, tokenizer))
        assert len(theirs[0]) == len(ours[0]), (data, seed)
        for number, (one, other) in enumerate(zip(theirs[0], ours[0], strict=True)):
            assert one == other, (data, seed, number)
        assert theirs[1] == ours[1], (data, seed)
        right += theirs[1]
    assert 0 < right < GAMES
