"""A real tokenizer and the chat templates of real models: a prompt's text is what the template makes of the messages.

The tokenizer is SmolLM2's. The templates of Qwen, GLM and Llama are those that TRL ships beside its code.
"""

from __future__ import annotations

import copy
import random
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from core.gateway import AgentRequest, Gateway, SessionSettings, WireMessage
from core.policy.scripted import ScriptedPolicy
from core.text.tokenizer import load_tokenizer
from core.text.tool_calls import ToolSchema
from core.types import Sampling
from tests import kit

pytestmark = pytest.mark.optional

SMOLLM2 = Path(__file__).resolve().parents[3] / "runs/data/smollm2-135m-instruct"
TRL = "needs TRL, which ships chat templates: pip install --no-deps trl"
TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "</tool_response>")
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>")
GLM = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
THINKING = ("qwen3", "qwen3_5_think", "qwen3_6", "glm4moe")
PLAIN = ("qwen2_5", "qwen3_instruct_2507", "llama3_1", "llama3_2")
SEARCH = ToolSchema(
    "search",
    "Search the web.",
    {"type": "object", "properties": {"query": {"type": "string"}, "count": {"type": "integer"}}},
)
RESULT = 'There are "42" horses:\n{"caf\u00e9": 1}'


@cache
def load_smollm2() -> Any:
    kit.require(SMOLLM2.is_dir(), "needs SmolLM2: tokentrue data smollm2")
    return load_tokenizer(SMOLLM2)


def make_tokenizer(name: str) -> Any:
    """Give SmolLM2's tokenizer another model's template, and the tokens that the template names."""
    tokenizer = copy.deepcopy(load_smollm2())
    trl = find_spec("trl")
    kit.require(trl, TRL)
    assert trl is not None
    [folder] = trl.submodule_search_locations or ()
    tokenizer.chat_template = (Path(folder) / "chat_templates" / f"{name}.jinja").read_text()
    if name.startswith("llama"):
        tokenizer.add_special_tokens({"additional_special_tokens": [*LLAMA]})
        tokenizer.bos_token, tokenizer.eos_token = LLAMA[0], LLAMA[3]
    else:
        tokenizer.add_tokens([*TAGS])
        tokenizer.eos_token = "<|im_end|>"
    if name.startswith("glm"):
        tokenizer.add_special_tokens({"additional_special_tokens": [*GLM]})
        tokenizer.eos_token = "<|endoftext|>"
    return tokenizer


class TemplateModel:
    """Answers in the very text that the template shows for an answer, in tokens that no tokenizer would choose."""

    def __init__(self, tokenizer: Any, tools: list[dict[str, Any]]):
        self.tokenizer = tokenizer
        self.tools = tools
        self.messages: list[dict[str, Any]] = []
        self.answer: dict[str, Any] = {}
        self.rng = random.Random(0)

    def render(self, messages: list[dict[str, Any]], *, generate: bool) -> str:
        rendered: str = self.tokenizer.apply_chat_template(
            messages, tools=self.tools or None, tokenize=False, add_generation_prompt=generate
        )
        return rendered

    def respond(self, prompt: tuple[int, ...], sampling: Sampling) -> list[int]:
        before = self.render(self.messages, generate=True)
        shown = self.render([*self.messages, self.answer], generate=False)
        assert shown.startswith(before)
        text = shown[len(before) :].partition(self.tokenizer.eos_token)[0]
        end = self.tokenizer.eos_token
        if GLM[0] in self.tokenizer.get_added_vocab():  # an answer of GLM ends with the token of the next role
            end = "<|observation|>" if "tool_calls" in self.answer else "<|user|>"
        ids: list[int] = []
        while text:
            size = next((len(tag) for tag in TAGS if text.startswith(tag)), self.rng.randint(1, 6))
            if "<" in text[1:size] and not text.startswith(TAGS):
                size = text.index("<", 1)
            ids += self.tokenizer.encode(text[:size], add_special_tokens=False)
            text = text[size:]
        return [*ids, self.tokenizer.convert_tokens_to_ids(end)]


def make_answer(turn: int, *, calls: int, thinks: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {"role": "assistant", "content": f"I look for horse {turn}." if calls != 1 else ""}
    if thinks:
        answer["reasoning_content"] = f"thought {turn}"
    if calls:
        function = {"name": "search", "arguments": {"query": f'a "horse"\n{turn}', "count": turn}}
        answer["tool_calls"] = [{"type": "function", "function": function}] * calls
    return answer


async def converse(tokenizer: Any, history: str, *, tools: bool, thinks: bool, most_calls: int) -> None:
    """Hold a conversation of nine turns; assert that each prompt is the template's rendering of the messages."""
    model = TemplateModel(tokenizer, [SEARCH.to_openai()] if tools else [])
    settings = SessionSettings(max_context=100_000, history=history)  # type: ignore[arg-type]
    session = Gateway({"policy": ScriptedPolicy(model.respond)}, tokenizer, settings).open_session("s")
    wire = [WireMessage("system", "You count."), WireMessage("user", "How many horses?")]
    model.messages = [{"role": message.role, "content": message.text} for message in wire]
    for turn in range(9):
        calls = (1, most_calls, 0)[turn % 3] if tools else 0
        model.answer = make_answer(turn, calls=calls, thinks=thinks)
        expected = model.render(model.messages, generate=True)
        [node] = await session.answer_all(AgentRequest("policy", tuple(wire), (SEARCH,) if tools else ()))
        session.mark_delivered(node)
        # With `sampled`, thoughts stay that the template drops once the user says more.
        if history == "template" or not thinks or turn < 3:
            assert tokenizer.decode(node.prompt_ids) == expected, turn
        assert len(node.message.calls) == calls
        following = [WireMessage("tool", RESULT, call_id=call.call_id) for call in node.message.calls]
        following = following or [WireMessage("user", f"And horse {turn}?")]
        wire += [node.message, *following]
        model.messages += [model.answer, *({"role": m.role, "content": m.text} for m in following)]


@pytest.mark.parametrize("history", ["sampled", "template"])
async def test_a_prompt_of_smollm2_is_its_templates_rendering(history: str) -> None:
    await converse(load_smollm2(), history, tools=False, thinks=False, most_calls=0)


@pytest.mark.parametrize("history", ["sampled", "template"])
@pytest.mark.parametrize("name", [*THINKING, *PLAIN])
async def test_a_prompt_is_the_templates_rendering(name: str, history: str) -> None:
    most_calls = 1 if name.startswith("llama") else 2
    await converse(make_tokenizer(name), history, tools=True, thinks=name in THINKING, most_calls=most_calls)


@pytest.mark.parametrize("name", [*THINKING, *PLAIN])
async def test_a_prompt_behind_a_trimmed_head_is_the_templates_rendering(name: str) -> None:
    """No stored prompt leads there, so the template shows every message anew."""
    tokenizer = make_tokenizer(name)
    model = TemplateModel(tokenizer, [SEARCH.to_openai()])
    settings = SessionSettings(max_context=100_000)
    session = Gateway({"policy": ScriptedPolicy(model.respond)}, tokenizer, settings).open_session("s")
    wire = [WireMessage("user", "How many horses?"), WireMessage("user", "Count them.")]
    model.messages = [{"role": message.role, "content": message.text} for message in wire]
    for turn in range(2):
        model.answer = make_answer(turn, calls=1, thinks=name in THINKING)
        [node] = await session.answer_all(AgentRequest("policy", tuple(wire), (SEARCH,)))
        session.mark_delivered(node)
        wire += [node.message, WireMessage("tool", RESULT, call_id=node.message.calls[0].call_id)]
        model.messages += [model.answer, {"role": "tool", "content": RESULT}]
    del wire[0], model.messages[0]
    expected = model.render(model.messages, generate=True)
    assert tokenizer.decode(session.render_prompt(AgentRequest("policy", tuple(wire), (SEARCH,)))) == expected
