"""What texts say: the official prose in the shapes that models give it, and the compact form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.agentflow.formats import (
    FORMATS,
    CompactFormat,
    NextStep,
    OfficialFormat,
    ParsedCommand,
    ParseError,
)

official, compact = OfficialFormat(), CompactFormat()

PLAIN = """\
Justification: Code is exact.
Context: x = 3
Sub-Goal: Compute x squared
Tool Name: python_coder"""
NUMBERED = """\
1. **Justification:** Code is exact.

2. **Context:** x = 3

3. **Sub-Goal:** Compute x squared

4. **Tool Name:** `python_coder`."""
NUMBERS_ON_LINES = """\
1.
**Justification:** Code is exact.
2.
**Context:** x = 3
3.
**Sub-Goal:** Compute x squared
4.
**Tool Name:** python_coder"""
INLINE = "Justification: Code is exact. Context: x = 3 Sub-Goal: Compute x squared Tool Name: python_coder"


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        PLAIN.lower().replace("code is", "Code is").replace("compute", "Compute"),
        PLAIN.upper().replace("CODE IS EXACT", "Code is exact").replace("X = 3", "x = 3")
        .replace("COMPUTE X SQUARED", "Compute x squared").replace("PYTHON_CODER", "python_coder"),
        NUMBERED,
        NUMBERS_ON_LINES,
        INLINE,
        f"```\n{PLAIN}\n```",
        f"{PLAIN}\n\nI hope this helps.\nIt should.",
        f"Sub-Goal: an earlier draft\nTool Name: search\n\n{PLAIN}",
        PLAIN.replace("Sub-Goal:", "### Sub-goal:").replace("Tool Name:", "**Tool name**:"),
        "I will fill in the tool name: last.\n" + PLAIN,
        PLAIN.replace(":", "："), PLAIN.replace("python_coder", "【python_coder】。"),
    ],
)  # fmt: skip
def test_a_next_step_in_the_shapes_that_models_give_it(text):
    step = official.parse_next_step(text)
    assert isinstance(step, NextStep)
    assert (step.context, step.sub_goal, step.tool) == ("x = 3", "Compute x squared", "python_coder")


def test_list_numbers_and_text_of_other_fields_do_not_leak_into_the_sub_goal():
    step = official.parse_next_step("Context: abc\n3.\nSub-Goal: do it\n4.\nTool Name: echo")
    assert isinstance(step, NextStep)
    assert (step.context, step.sub_goal) == ("abc", "do it")
    text = "Justification: the sub-goal: is easy\nContext:\nSub-Goal: add 1\n- and 2\nTool Name: echo"
    step = official.parse_next_step(text)
    assert isinstance(step, NextStep)
    assert step.sub_goal == "add 1\n- and 2"


@pytest.mark.parametrize(
    "text",
    [
        'execution = tool.execute(query="add 1")',
        'Generated Command:\n```python\nexecution = tool.execute(query="""add 1""")\n```',
        '```\nexecution = tool.execute(query="add 1")\n```\nThis adds.',
        '```py\nquery = "add 1"\nexecution = tool.execute(query=query)\n```',
        'q = "add 1"\nexecution = tool.execute(query=q)',
        'Here it is:\nexecution = tool.execute(query="add 1")\nThat is all.',
        '```python\nexecution = tool.execute(query="add 1")',
        '```python\nimport os\nexecution = tool.execute(query="no")\nexecution = tool.execute(query="add 1")\n```',
        '```python\nexecution = tool.execute(query="no")\n```\nor\n```\nexecution = tool.execute(query="add 1")\n```',
    ],
)
def test_a_command_is_read(text):
    command = official.parse_command(text)
    assert isinstance(command, ParsedCommand)
    assert command.arguments == {"query": "add 1"}


def test_of_several_calls_the_memory_shows_the_one_that_runs():
    calls = [f'q = "{name}"\nexecution = tool.execute(query=q)' for name in ("add 1", "add 2")]
    command = official.parse_command("```python\n" + "\n".join(calls) + "\n```")
    assert command == ParsedCommand({"query": "add 2"}, "execution = tool.execute(query='add 2')")
    long = f"execution = tool.execute(query=0x{'f' * 5000})"  # such an integer has no decimal digits
    assert isinstance(official.parse_command(f"{long}; {long}"), ParsedCommand)


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("All is there.\nConclusion: STOP", True),
        ("conclusion: continue", False),
        ("**Conclusion:** STOP.", True),
        ("最终Conclusion：STOP因为答案已经有了", True),
        ("Conclusion：「STOP」。", True),
        ("Conclusion:\u00a0CONTINUE", False),
        ("_Conclusion_:\u3000_STOP_", True),
        ("### Conclusion:\nSTOP", True),
        ("### Conclusion\n\n**STOP**", True),
        ("**Conclusion:**\n\n**CONTINUE**", False),
        ('Conclusion: "STOP"', True),
        ("**Conclusion**: **CONTINUE**", False),
        ("End with Conclusion: STOP or Conclusion: CONTINUE. Conclusion: STOP", True),
        ("Conclusion: STOP\nNo, wait.\nConclusion: CONTINUE", False),
    ],
)
def test_the_last_conclusion_decides(text, stop):
    assert official.parse_verdict(text) is stop


@pytest.mark.parametrize(
    ("parse", "text", "kind"),
    [
        (official.parse_next_step, "", "no_tool"),
        (official.parse_next_step, "I would use the python_coder.", "no_tool"),
        (official.parse_next_step, "Sub-Goal: add\nTool Name:", "no_tool"),
        (official.parse_next_step, "Tool Name: echo", "no_sub_goal"),
        (official.parse_next_step, "Context: x\nSub-Goal:\n4.\nTool Name: echo", "no_sub_goal"),
        (official.parse_next_step, "Tool Name: echo\nSub-Goal: add", "no_sub_goal"),
        (official.parse_command, "", "no_command"),
        (official.parse_command, "tool.execute", "no_command"),
        (official.parse_command, 'execution = other.execute(query="x")', "no_command"),
        (official.parse_command, 'execution = tool.execute(query="x"', "bad_command"),
        (official.parse_command, 'execution = tool.execute("x")', "bad_command"),
        (official.parse_command, 'execution = tool.execute(**{"query": "x"})', "bad_command"),
        (official.parse_command, "execution = tool.execute(query=secret)", "bad_command"),
        (official.parse_command, "execution = tool.execute(query=open('/etc/passwd').read())", "bad_command"),
        (official.parse_command, "execution = tool.execute(query=__import__('os').environ)", "bad_command"),
        (official.parse_command, 'execution = tool.execute(query=f"{1}")', "bad_command"),
        (official.parse_command, "a = 'x'\nb = a\nexecution = tool.execute(query=b)", "bad_command"),
        (official.parse_command, "a = 'x'\na = a + 'y'\nexecution = tool.execute(query=a)", "bad_command"),
        (official.parse_command, "a = 'x'\na += 'y'\nexecution = tool.execute(query=a)", "bad_command"),
        (official.parse_command, "a = 'x'\nfor a in 'yz': pass\nexecution = tool.execute(query=a)", "bad_command"),
        (official.parse_command, "execution = tool.execute(query=9**9**9)", "bad_command"),
        (official.parse_command, "execution = tool.execute(query=" + "[" * 5000, "bad_command"),
        (official.parse_command, "execution = tool.execute(query=" + "-" * 50000 + "1)", "bad_command"),
        (official.parse_command, "execution = tool" + "()" * 20000, "no_command"),
        (official.parse_command, 'execution = tool.execute(query="\x00")', "bad_command"),
        *(
            (official.parse_verdict, text, "no_conclusion")
            for text in ("", "It is a non-stop flight.", "Conclusion: do not STOP", "Conclusion: STOPPING", "STOP")
        ),
        (compact.parse_next_step, "", "no_tool"),
        (compact.parse_next_step, " python 12 * 7", "no_tool"),
        (compact.parse_next_step, " : 12 * 7", "no_tool"),
        (compact.parse_next_step, " python :", "no_sub_goal"),
        (compact.parse_command, " ", "no_command"),
        (compact.parse_verdict, "", "no_conclusion"),
        (compact.parse_verdict, "non-STOP", "no_conclusion"),
    ],
)
def test_what_is_malformed_has_a_kind_and_is_never_run(parse, text, kind):
    error = parse(text)
    assert isinstance(error, ParseError)
    assert error.kind == kind


def test_compact():
    assert compact.parse_next_step(" python : ratio 3 : 4\n") == NextStep("", "ratio 3 : 4", "python")
    assert compact.parse_command(" 12 * 7") == ParsedCommand({"query": "12 * 7"}, "12 * 7")
    assert compact.parse_verdict(" STOP") is True
    assert compact.parse_verdict("so CONTINUE.\n") is False


PARTS = """Tool Name:|Sub-Goal:|Context:|4.|
| |*|`|```|execution = |tool.execute(|)|"|query=|Conclusion:|STOP|:|é|
|(""".split("|")


@given(st.lists(st.sampled_from(PARTS), max_size=40).map("".join) | st.text())
def test_no_text_makes_a_parser_raise(text):
    for form in (official, compact):
        for parse in (form.parse_next_step, form.parse_command, form.parse_verdict):
            assert isinstance(parse(text), NextStep | ParsedCommand | bool | ParseError)


@given(*[st.from_regex(r"[a-z][a-z0-9 ,+]{0,20}[a-z0-9]", fullmatch=True)] * 3)
def test_what_is_written_in_the_form_is_read_back(context, sub_goal, tool):
    text = f"1. **Justification:** so\n2. **Context:** {context}\n3. **Sub-Goal:** {sub_goal}\n4. **Tool Name:** {tool}"
    assert official.parse_next_step(text) == NextStep(context, sub_goal, tool)
    assert compact.parse_next_step(f" {tool} : {sub_goal}") == NextStep("", sub_goal, tool)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "part",
    ["*", "Tool Name", "Tool Name:", "sub-goal: ", "context   ", "4.\n", "execution =\n", "`", "***3", "conclusion: "],
)
def test_long_texts_take_no_longer_than_their_length(part):
    """The patterns do not backtrack: a square law would take minutes here."""
    text = part * (100_000 // len(part)) + "!"
    for form in (official, compact):
        for parse in (form.parse_next_step, form.parse_command, form.parse_verdict):
            parse(text)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("So:\n```python\nprint(6 * 7)\n```\nIt prints 42.", "print(6 * 7)"),
        ("```text\nprice of lamp\n```", "price of lamp"),
        ("```\na\n```\nor better\n```\nb\n```", "b"),
        ("```bash\nls\n```", None),
        ("```python\n```", None),
        ('execution = tool.execute(query="x")', None),
    ],
)
def test_a_command_in_a_fence_is_the_query(text: str, query: str | None) -> None:
    found = FORMATS["fences"].parse_command(text)
    if query is None:
        assert isinstance(found, ParseError)
        assert found.kind == "no_command"
    else:
        assert found == ParsedCommand({"query": query}, query)
    assert FORMATS["fences"].parse_verdict("Conclusion: STOP") is True
