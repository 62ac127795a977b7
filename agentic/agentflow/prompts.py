"""Holds AgentFlow's prompts: one message with {slots} for each role of the flow.

`official` follows the released prompts (lupantech/AgentFlow, MIT; slime-agentic's are nearly the same) in layout and
field names, and asks for a boxed answer. `released` is those prompts byte for byte (released.py), for released
planners. `compact` has the same inputs in a few tokens, for small models.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentic.agentflow import released
from agentic.agentflow.formats import Style

_PLAN = """\
Task: Analyze the given query to determine necessary skills and tools.

Inputs:
- Query: {question}
- Available tools: {tools}
- Metadata for tools:
{metadata}

Instructions:
1. Identify the main objectives in the query.
2. List the necessary skills and tools.
3. For each skill and tool, explain how it helps address the query.
4. Note any additional considerations.
"""
_NEXT_STEP = """\
Task: Determine the optimal next step to address the query using available tools and previous steps.

Context:
- **Query:** {question}
- **Query Analysis:** {analysis}
- **Available Tools:** {tools}
- **Toolbox Metadata:**
{metadata}
- **Previous Steps:**
{memory}

Instructions:
1. Analyze the query, previous steps, and available tools.
2. Select the **single best tool** for the next step.
3. Formulate a specific, achievable **sub-goal** for that tool.
4. Provide all necessary **context** (data, file names, variables) for the tool to function.

Response Format:
1. **Justification:** Explain your choice of tool and sub-goal.
2. **Context:** Provide all necessary information for the tool.
3. **Sub-Goal:** State the specific objective for the tool.
4. **Tool Name:** State the exact name of the selected tool.

Rules:
- Select only ONE tool.
- The sub-goal must be directly achievable by the selected tool.
- The Context section must contain all information the tool needs to function.
- The response must end with the Context, Sub-Goal, and Tool Name sections in that order, with no extra content.
"""
_COMMAND = '''\
Task: Generate a precise command to execute the selected tool.

Context:
- **Query:** {question}
- **Sub-Goal:** {sub_goal}
- **Tool Name:** {tool}
- **Tool Metadata:**
{tool_metadata}
- **Relevant Data:** {context}

Instructions:
1. Read the tool's arguments in its metadata.
2. Write one call `execution = tool.execute(...)` that achieves the sub-goal.
3. Give every argument by name, as a literal; put text into triple double quotes. Nothing else is evaluated.

Output Format (no other text):
Generated Command:
```python
execution = tool.execute(query="""Calculate the factorial of 10""")
```
'''
_FENCED_COMMAND = (
    _COMMAND.partition("Instructions:")[0]
    + """\
Instructions:
1. Read in the tool's metadata what its query is.
2. Write the query that achieves the sub-goal in one block: a program in ```python, or words in ```text. If the tool \
runs a program that you give it, print what you want to know.
"""
)
_VERIFY = """\
Task: Evaluate if the current memory is complete and accurate enough to answer the query, or if more tools are needed.

Context:
- **Query:** {question}
- **Available Tools:** {tools}
- **Toolbox Metadata:**
{metadata}
- **Initial Analysis:** {analysis}
- **Memory (Tools Used & Results):**
{memory}

Instructions:
1. Review the query, initial analysis, and memory.
2. Assess the completeness of the memory: does it fully address all parts of the query?
3. Check for inconsistencies, contradictions, and anything ambiguous or in need of verification.
4. Determine if any unused tools could provide missing information.

Final Determination:
- If the memory is sufficient, explain why and conclude with "STOP".
- If more information is needed, explain what is missing, which tools could help, and conclude with "CONTINUE".

IMPORTANT: The response must end with either "Conclusion: STOP" or "Conclusion: CONTINUE".
"""
_FINAL = """\
Task: Generate the final output based on the query and the results from all tools used.

Context:
- **Initial Analysis:** {analysis}
- **Query:** {question}
- **Actions Taken:**
{memory}

Instructions:
1. Review the query and the results from all tool executions.
2. Incorporate the relevant information to create a coherent, step-by-step final output.
3. You MUST end your response with the final answer enclosed in \\boxed{}. For example: \\boxed{42}.
"""

_OFFICIAL = {
    "planner.plan": _PLAN,
    "planner.next_step": _NEXT_STEP,
    "planner.final": _FINAL,
    "executor": _COMMAND,
    "verifier": _VERIFY,
}
MESSAGES: Mapping[Style, Mapping[str, str]] = {
    "official": _OFFICIAL,
    "fences": {**_OFFICIAL, "executor": _FENCED_COMMAND},
    "released": released.MESSAGES,
    "compact": {
        "planner.plan": "<plan>{question}",
        "planner.next_step": "<step>{question}<analysis>{analysis}<memory>{memory}",
        "planner.final": "<final>{question}<analysis>{analysis}<memory>{memory}",
        "executor": "<command>{tool} : {sub_goal}",
        "verifier": "<verify>{question}<memory>{memory}",
    },
}
SYSTEM: Mapping[Style, str] = {"released": released.SYSTEM}
"""Holds the system message of the roles; without one the chat template decides."""
MESSAGE = "{message}"
"""Asks any other role: the text of a tool or of the grader is the user's message."""
