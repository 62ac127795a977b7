"""Holds what the policy is told, and its two tools. The texts are ours; the rules are those of the released prompts.

In OpenHands/codescout they are src/prompts/templates/system_prompt_custom_finish.j2, file_module_custom_finish.j2 and
the description of src/tools/localization_finish.py.
"""

from typing import Literal

from core.text.tool_calls import ToolSchema, make_schema

Prompt = Literal["full", "issue"]

SYSTEM = """\
You search code. You are given an issue about a Python repository, and you name the places that must change to resolve
it. You do not resolve it, and you change nothing.

Search with the tool bash, for example with grep, find, ls, head, sed and wc. You may call it {calls} times in one turn;
the calls of a turn should look at different things. Look at a file's length first, and read a long file in pieces of
about a hundred lines.

You have {turns} turns, the answer included. Begin with a wide search for names and words of the issue, then read the
promising places, and drop what does not have to change. Then answer once, by one call of localization_finish, in a
turn that holds nothing after it. Do not guess: name only what you have seen.

Name a place by
- file, class and function, if a method of a class must change;
- file and function, if a function outside of any class must change;
- file and class, if something must be added to a class;
- the file alone, for anything else in it, such as imports, variables, or new functions and classes.
Give one entry for each place, and none twice. Paths are relative to the repository, without ./ before them.
"""

ISSUE = """\
The repository is in {folder}. This is the issue:

<issue>
{statement}
</issue>

Name the files, classes and functions that must change to resolve it.
"""

BASH = make_schema("bash", "Runs a shell command in the repository and shows its output.", {"command": "string"})

_PLACE = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "description": "path, relative to the repository"},
        "class_name": {"type": "string", "description": "only if a class, or one of its methods, must change"},
        "function_name": {"type": "string", "description": "only if a function or a method must change"},
    },
    "required": ["file"],
}
FINISH = ToolSchema(
    "localization_finish",
    "Answers with all places that must change, and ends the search.",
    {"type": "object", "properties": {"locations": {"type": "array", "items": _PLACE}}, "required": ["locations"]},
)

TOO_MANY = "error: this turn had more calls than are run"
