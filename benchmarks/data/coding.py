"""Makes repair tasks of published functions: HumanEvalFix (OctoPack) and MBPP, whose bugs are mutations.

| name | hub, at a pinned commit | train | eval | test |
|---|---|---|---|---|
| humanevalfix | bigcode/humanevalpack (not pinned) | none | none | all 164, with the bugs that people wrote |
| mbpp | google-research-datasets/mbpp | task_id 601 to 974 | 511 to 600 | 11 to 510; 1 to 10 are few-shot examples |

A task is a repository of solution.py and tests/test_solution.py, in the fields of agentic/coding/records.py. Each is
checked in the sandbox: the right function passes all of its tests, the broken one fails at least one of them. MBPP's
functions are written anew from their syntax trees, so they lose their comments. The task's text becomes the docstring
of one that has none. The two records with set-up code, 367 and 927, are left out: it needs classes of the solution, and
comes before it here.
"""

from __future__ import annotations

import ast
import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from random import Random
from typing import Any

from agentic.coding.repairs.generate import WORKDIR, write_patch
from agentic.coding.repairs.mutations import draw_mutation, list_mutations
from benchmarks.data.sets import Benchmark, Convert, Located, Record
from core.data.files import DataError
from core.data.splits import Split
from core.sandbox import Sandbox, SandboxLimits, SandboxUnavailable
from core.types import Task

SOURCE, TESTS = "solution.py", "tests/test_solution.py"
MUTANTS, TRIES = 4, 16
"""Limit the bugs of a training function (others have one), and the mutations that are tried for a function."""
TEST_SECONDS, PATIENCE_S = 5.0, 60.0
"""Limit the tests of a broken function and of a right one, by the clock."""
RIGHT_CPU_S = 0.5
"""Limits a right function by processor time, so that a busy machine leaves out none. MBPP's 123 takes two seconds, and
was left out or not as the machine was busy; the others take at most a tenth."""

ConvertOne = Callable[[Sandbox, str, Located], Coroutine[Any, Any, list[Task] | str]]
"""Converts one record into tasks, or says why there is none."""

# Prints which tests pass. Each starts from the names that the source defined.
_RUNNER = """
import json, time
source, tests = json.loads({program!r})
names = {{"__name__": "solution"}}
exec(source, names)
passed = []
for test in tests:
    try:
        exec(test, dict(names))
        passed.append(True)
    except BaseException:
        passed.append(False)
print("\\n" + json.dumps([passed, time.process_time()]))
"""


async def run_tests(sandbox: Sandbox, source: str, tests: Sequence[str], right: bool = False) -> list[bool] | None:
    """Return which tests the source passes; None if it breaks before them, or a limit ends it."""
    code = _RUNNER.format(program=json.dumps([source, list(tests)]))
    result = await sandbox.run(code, PATIENCE_S if right else TEST_SECONDS)
    if result.status != "ok":
        return None
    passed, cpu_s = json.loads(result.stdout.splitlines()[-1])
    return None if right and cpu_s > RIGHT_CPU_S else passed


def convert_in_sandbox(convert: ConvertOne) -> Convert:
    """Return the conversion of all records by one of a single record; as many run at once as the sandbox lets."""

    def convert_all(prefix: str, records: Iterable[Located], told: Counter[str]) -> Iterator[Task]:
        async def run() -> list[list[Task] | str]:
            return await asyncio.gather(*(convert(sandbox, prefix, located) for located in records))

        try:
            sandbox = Sandbox(SandboxLimits(timeout_s=PATIENCE_S))
        except SandboxUnavailable as error:
            raise DataError(f"the tests of this set run in the sandbox: {error}") from None
        for made in asyncio.run(run()):
            if isinstance(made, str):
                told[f"left out: {made}"] += 1
            else:
                yield from made

    return convert_all


@convert_in_sandbox
async def convert_humanevalfix(sandbox: Sandbox, prefix: str, located: Located) -> list[Task] | str:
    """Convert HumanEvalPack's Python. As in HumanEvalFix, the prompt has the tests, and the function no docstring."""
    location, record = located
    name, call = record["entry_point"], f"check({record['entry_point']})"
    right, broken = (record["declaration"] + record[field] for field in ("canonical_solution", "buggy_solution"))
    head, found, rest = record["test"].rpartition(call)
    if not found or rest.strip():
        raise location.error("test", f"does not end with {call}", "is this HumanEvalPack's Python?")
    if await run_tests(sandbox, right, [record["test"]], right=True) != [True]:
        return "the solution fails its tests here, or takes too long"
    if await run_tests(sandbox, broken, [record["test"]]) == [True]:
        return "the bug fails no test"
    task_id = f"humanevalfix-{record['task_id'].rpartition('/')[2]}"
    statement = f"{state_bug(name)} It should pass these tests:\n{record['test'].strip()}"
    kind, sources = record["bug_type"], (right, broken)
    return [write_task(task_id, record["docstring"], statement, kind, sources, head, {call: False})]


@convert_in_sandbox
async def convert_mbpp(sandbox: Sandbox, prefix: str, located: Located) -> list[Task] | str:
    """Break a function of MBPP: one bug, in training up to MUTANTS tasks with one each."""
    _, record = located
    tests, head = record["test_list"], record["test_setup_code"]
    module = ast.parse(record["code"])
    called = {node.id for test in tests for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Name)}
    function = next((n for n in module.body if isinstance(n, ast.FunctionDef) and n.name in called), None)
    if function is None:
        return "the tests call no function of the code"
    if ast.get_docstring(function) is None:
        function.body.insert(0, ast.Expr(ast.Constant(record["text"])))
    place, right = module.body.index(function), ast.unparse(module) + "\n"
    if await run_tests(sandbox, f"{head}\n{right}", tests, right=True) != [True] * len(tests):
        if head and await run_tests(sandbox, f"{right}{head}", tests, right=True) == [True] * len(tests):
            return "the set-up of its tests, which comes first here, needs the solution"
        return "the published solution fails its tests here, or takes too long"
    statement = f"{state_bug(function.name)} It should do this: {record['text'].strip()}"
    rng, mutations, made = Random(f"mbpp-{record['task_id']}"), list_mutations(ast.unparse(function)), list[Task]()
    for _ in range(min(TRIES, len(mutations))):
        mutations.remove(mutation := draw_mutation(rng, mutations))
        module.body[place] = ast.parse(mutation.source).body[0]
        broken = ast.unparse(module) + "\n"
        passed = await run_tests(sandbox, f"{head}\n{broken}", tests)
        if passed is None or all(passed):  # it never ends, or nothing shows
            continue
        task_id, results = f"mbpp-{record['task_id']}-{len(made) + 1}", dict(zip(tests, passed, strict=True))
        made.append(write_task(task_id, record["text"], statement, mutation.kind, (right, broken), head, results))
        if len(made) == (MUTANTS if prefix.endswith("train") else 1):
            break
    return made or "no mutation of the function fails a test"


def state_bug(function: str) -> str:
    return f"`{function}` in `{SOURCE}` has a bug. Fix it."


def write_task(
    task_id: str, question: str, statement: str, kind: str, sources: tuple[str, str], head: str, tests: dict[str, bool]
) -> Task:
    """Write a repository around the (right, broken) source, and each test with whether the broken one passes it.

    The agent is told the `statement`; the `question` is what splits are compared by.
    """
    right, broken = sources
    functions = [f"def test_{n}():\n    {test.strip()}\n" for n, test in enumerate(tests, 1)]
    text = "\n\n".join(["from solution import *", *filter(None, [head.strip()]), *functions])
    results = {f"test_{n}": passed for n, passed in enumerate(tests.values(), 1)}
    metadata = {
        "instance_id": task_id,
        "kind": kind,
        "workdir": WORKDIR,
        "problem_statement": statement,
        "repository": {SOURCE: broken, TESTS: text},
        "FAIL_TO_PASS": [f"{TESTS}::{name}" for name, passed in results.items() if not passed],
        "PASS_TO_PASS": [f"{TESTS}::{name}" for name, passed in results.items() if passed],
        "cases": [{"function": f"tests.test_solution.{name}", "arguments": [], "returns": None} for name in results],
        "patch": write_patch(SOURCE, broken, right),
    }
    return Task(task_id=task_id, question=question, answers=(task_id,), metadata=metadata)


def find_mbpp_split(record: Record) -> str:
    """Return the published split of a record, which its number tells."""
    number = record.get("task_id")
    if not isinstance(number, int) or not 0 < number <= max(MBPP_LAST):
        raise DataError(f"field 'task_id' is {number!r}, and MBPP has 1 to {max(MBPP_LAST)}. Fix: give its mbpp.jsonl.")
    return next(split for last, split in MBPP_LAST.items() if number <= last)


MBPP = "google-research-datasets/mbpp@4bb6404fdc6cacfda99d4ac4205087b89d32030c:full"
MBPP_LAST = {10: "prompt", 510: "test", 600: "validation", 974: "train"}
MBPP_SPLITS: dict[str, Split | None] = {"train": "train", "validation": "eval", "test": "test", "prompt": None}
HUMANEVAL = "bigcode/humanevalpack:data/python/data/humanevalpack.jsonl"
CODING_BENCHMARKS = {
    "humanevalfix": Benchmark(((HUMANEVAL, "test"),), {"humanevalpack*.jsonl": "test"}, {"test": "test"},
                              convert_humanevalfix, 164),
    "mbpp": Benchmark(tuple((f"{MBPP}:{split}", split) for split in MBPP_SPLITS), {"mbpp.jsonl": "", "*.parquet": ""},
                      MBPP_SPLITS, convert_mbpp, 974, find_split=find_mbpp_split),
}  # fmt: skip
