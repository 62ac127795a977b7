"""Chat templates as those of Qwen3, Qwen3-Coder, Llama 3, GLM and Kimi, written for these tests, and tokenizers."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from tests.kit import train_tokenizer

_TOOLS = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}"
)

# Thoughts of answers before the last user's message are left out; in the loop of tools after it they stay.
QWEN3 = (
    _TOOLS + "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\n"
    "{% if '</think>' in m.content and loop.index0 < ns.last %}{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# As Qwen3.5: the prompt itself opens the thoughts, and in the loop of tools an answer without thoughts has empty ones.
QWEN3_THINKING = QWEN3.replace(
    "{% if add_generation_prompt %}<|im_start|>assistant\n",
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n",
).replace(
    "{% else %}{{ m.content }}{% endif %}",
    "{% else %}{% if '</think>' not in m.content and loop.index0 > ns.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}{% endif %}",
)

QWEN3_CODER = QWEN3.replace(
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}',
    "<function={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n"
    "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>",
)

LLAMA3 = (
    _TOOLS.replace("<|im_start|>system\n", "<|im_start|>system<|h|>\n\n")
    + "{% for m in messages %}<|im_start|>{{ 'ipython' if m.role == 'tool' else m.role }}<|h|>\n\n"
    "{% if m.tool_calls %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% elif m.role == 'tool' %}{{ m.content | tojson }}{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|h|>\n\n{% endif %}"
)

# As GLM 4.5: an answer ends with the token of the next role, and thoughts that are not shown leave empty ones.
GLM = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% if tools %}<|system|>\n{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>\n"
    "{% if '</think>' in m.content and loop.index0 > ns.last %}"
    "<think>{{ m.content.split('</think>')[0].split('<think>')[-1].strip() }}</think>"
    "{% else %}<think></think>{% endif %}"
    "{% set text = m.content.split('</think>')[-1].strip() %}{% if text %}{{ '\n' + text }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ '\n<tool_call>' + c.function.name + '\n' }}"
    "{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}"
    "{% elif m.role == 'tool' %}<|observation|>{{ '\n' + m.content }}{% else %}<|{{ m.role }}|>{{ '\n' + m.content }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# As Kimi K2: thoughts have a field of their own and end with a turn, and results bear the ids of their calls.
KIMI = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'assistant' and not m.tool_calls %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% if tools %}<|tools|>{{ tools | tojson }}<|im_end|>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}<|middle|>{% if m.role == 'assistant' %}"
    "<think>{{ (m.reasoning_content or '') if loop.index0 > ns.last else '' }}</think>{{ m.content }}"
    "{% if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}"
    "<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
    "<|tool_calls_section_end|>{% endif %}{% elif m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n{{ m.content }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|middle|>{% endif %}"
)

TEMPLATES = {"qwen3": QWEN3, "qwen3_thinking": QWEN3_THINKING, "qwen3_coder": QWEN3_CODER, "llama3": LLAMA3}
FORMATS = {"qwen3": "hermes", "qwen3_thinking": "hermes", "qwen3_coder": "qwen3_coder", "llama3": "llama3_json"}
TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "</tool_response>")


OTHERS = {"glm": GLM, "kimi": KIMI}
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|middle|>")


@cache
def make_tokenizer(name: str) -> Any:
    """Train a tokenizer with one of TEMPLATES; the tags are added tokens, as Qwen's are."""
    text = "user assistant system tool name arguments parameters function the answer is hello search for it"
    if name in OTHERS:
        return train_tokenizer(text, 330, template=OTHERS[name], special=ROLES, added=TAGS)
    return train_tokenizer(text, 320, template=TEMPLATES[name], special=["<|h|>"], added=TAGS)


_THOUGHTS = (
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
)


def make_thinking_tokenizer() -> Any:
    """Make a tokenizer whose template shows thoughts as Qwen3's does: those after the last user's message."""
    tokenizer = copy.copy(make_tokenizer("qwen3"))
    begin = "<|im_start|>assistant\n"
    tokenizer.chat_template = QWEN3.replace(f"{begin}{{% if", f"{begin}{_THOUGHTS}{{% if", 1)
    return tokenizer
