"""Holds what the agent is told, and its tools."""

from core.text.tool_calls import make_schema

TASK = "{statement}\n"
REPAIR = "Repair the repository in the current folder. Change its source, not its tests."
WORK = "Work in the current folder."
"""Stands for REPAIR where the tests are elsewhere, and look at the whole folder."""
INSTRUCTIONS = f"{REPAIR} When you are done, answer without a tool call.\n"
FENCE_INSTRUCTIONS = (
    f"{REPAIR} Write one shell command, or a few lines, in a ```bash block; it is run, and you are shown its output. "
    "When you are done, answer without a block.\n"
)
REWRITE_INSTRUCTIONS = "Write the whole repaired file in a ```python block.\n"
SUMMARY_REQUEST = (
    "The conversation will be cut. Sum up what you have learned and changed, and what is left to do. Call no tool."
)
SUBAGENT = (
    "You help an agent that repairs the repository in the current folder. Look into it and answer this. Change "
    "nothing.\n"
)

BASH = make_schema("bash", "Runs a shell command in the repository and shows its output.", {"command": "string"})
READ = make_schema("read", "Shows a file with numbered lines.", {"path": "string"}, first="integer", last="integer")
EDIT = make_schema(
    "edit",
    "Replaces a line of a file, or the lines up to `last`, by a text. An empty text removes them.",
    {"path": "string", "line": "integer", "text": "string"},
    last="integer",
)
DELEGATE = make_schema("delegate", "Asks a helper to look into something; it has no `edit`.", {"question": "string"})
SCHEMAS = {schema.name: schema for schema in (BASH, READ, EDIT, DELEGATE)}
