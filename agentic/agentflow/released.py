"""Holds the prompts and tool metadata of the released AgentFlow, byte for byte: released planners were trained on them.

Source: lupantech/AgentFlow (MIT) at b940064, agentflow/agentflow: models/planner.py, executor.py, verifier.py and
memory.py, engine/vllm.py, and tools/*/tool.py. tests/golden/prompts compares all of them with it. Tools, their
metadata and the memory enter the prompts as Python prints its lists and dictionaries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

SYSTEM = "You are a helpful, creative, and smart assistant."

PLAN = """
Task: Analyze the given query to determine necessary skills and tools.

Inputs:
- Query: {question}
- Available tools: {tools}
- Metadata for tools: {metadata}

Instructions:
1. Identify the main objectives in the query.
2. List the necessary skills and tools.
3. For each skill and tool, explain how it helps address the query.
4. Note any additional considerations.

Format your response with a summary of the query, lists of skills and tools with explanations, and a section for \
additional considerations.

Be biref and precise with insight.\x20
"""
NEXT_STEP = """
Task: Determine the optimal next step to address the query using available tools and previous steps.

Context:
- **Query:** {question}
- **Query Analysis:** {analysis}
- **Available Tools:** {tools}
- **Toolbox Metadata:** {metadata}
- **Previous Steps:** {memory}

Instructions:
1. Analyze the query, previous steps, and available tools.
2. Select the **single best tool** for the next step.
3. Formulate a specific, achievable **sub-goal** for that tool.
4. Provide all necessary **context** (data, file names, variables) for the tool to function.

Response Format:
1.  **Justification:** Explain your choice of tool and sub-goal.
2.  **Context:** Provide all necessary information for the tool.
3.  **Sub-Goal:** State the specific objective for the tool.
4.  **Tool Name:** State the exact name of the selected tool.

Rules:
- Select only ONE tool.
- The sub-goal must be directly achievable by the selected tool.
- The Context section must contain all information the tool needs to function.
- The response must end with the Context, Sub-Goal, and Tool Name sections in that order, with no extra content.
                    """
COMMAND = """
        Task: Generate a precise command to execute the selected tool.

Context:
- **Query:** {question}
- **Sub-Goal:** {sub_goal}
- **Tool Name:** {tool}
- **Tool Metadata:** {tool_metadata}
- **Relevant Data:** {context}

Instructions:
1.  Analyze the tool's required parameters from its metadata.
2.  Construct valid Python code that addresses the sub-goal using the provided context and data.
3.  The command must include at least one call to `tool.execute()`.
4.  Each `tool.execute()` call must be assigned to a variable named **`execution`**.
5.  Please give the exact numbers and parameters should be used in the `tool.execute()` call.

Output Format:
Present your response in the following structured format. Do not include any extra text or explanations.

Generated Command:
```python
<command>
```

Example1:
Generated Command:
```python
execution = tool.execute(query="Summarize the following porblom:"Isaac has 100 toys, masa gets ...., how much are \
their together?")
```

Example2:
Generated Command:
```python
execution = tool.execute(query=["Methanol", "function of hyperbola", "Fermat's Last Theorem"])
```
"""
VERIFY = """
Task: Evaluate if the current memory is complete and accurate enough to answer the query, or if more tools are needed.

Context:
- **Query:** {question}
- **Available Tools:** {tools}
- **Toolbox Metadata:** {metadata}
- **Initial Analysis:** {analysis}
- **Memory (Tools Used & Results):** {memory}

Instructions:
1.  Review the query, initial analysis, and memory.
2.  Assess the completeness of the memory: Does it fully address all parts of the query?
3.  Check for potential issues:
    -   Are there any inconsistencies or contradictions?
    -   Is any information ambiguous or in need of verification?
4.  Determine if any unused tools could provide missing information.

Final Determination:
-   If the memory is sufficient, explain why and conclude with "STOP".
-   If more information is needed, explain what's missing, which tools could help, and conclude with "CONTINUE".

IMPORTANT: The response must end with either "Conclusion: STOP" or "Conclusion: CONTINUE".
"""
FINAL = """
Task: Generate a concise final answer to the query based on all provided context.

Context:
- **Query:** {question}
- **Initial Analysis:** {analysis}
- **Actions Taken:** {memory}

Instructions:
1. Review the query and the results from all actions.
2. Synthesize the key findings into a clear, step-by-step summary of the process.
3. Provide a direct, precise answer to the original query.

Output Structure:
1.  **Process Summary:** A clear, step-by-step breakdown of how the query was addressed, including the purpose and key \
results of each action.
2.  **Answer:** A direct and concise final answer to the query.
"""

MESSAGES: Mapping[str, str] = {
    "planner.plan": PLAN,
    "planner.next_step": NEXT_STEP,
    "planner.final": FINAL,
    "executor": COMMAND,
    "verifier": VERIFY,
}
TOOLS = Path(__file__).with_name("released_tools.json")
"""Holds the metadata of the four tools, in the order in which the released test/*/run.sh enables them."""


@cache
def read_tools() -> dict[str, dict[str, Any]]:
    """Return the released tools' metadata by name."""
    return {tool["tool_name"]: tool for tool in json.loads(TOOLS.read_text(encoding="utf-8"))}


def describe_tools(names: Sequence[str]) -> dict[str, str]:
    """Return the slots `tools` and `metadata` for a toolbox whose tools have these names."""
    known = read_tools()
    return {"tools": str(sorted(names)), "metadata": str({name: known[name] for name in names})}


def describe_tool(name: str) -> str:
    return str(read_tools()[name])


def render_memory(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the memory of steps with tool_name, sub_goal, command and result."""
    return str({f"Action Step {number}": dict(step) for number, step in enumerate(steps, 1)})
