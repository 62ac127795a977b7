"""Regenerate the golden facts by running the official code; nothing of that code is stored.

    python -m tests.golden.ruler.make_golden --ruler-root RULER --memagent-root MEMAGENT --data ../shared/data

RULER is a checkout of NVIDIA/RULER (facts made at c3f5e3b4), MEMAGENT one of BytedTsinghua-SIA/MemAgent (76b7a658).
Needs scipy and tqdm beside this project's environment. Stand-ins, because their data cannot be shipped: NLTK's sentence
splitter is a regular expression, the tokenizer is `describe.tokenize`, english_words.json is empty, and the SQuAD file
is made of HotpotQA paragraphs.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from tests.golden.ruler import describe
from tests.golden.ruler.predictions import Case, cases

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LENGTH, COUNT, SEED = 4096, 40, 42
QA_LENGTH, QA_COUNT = 16_384, 10  # the official qa loops for ever where ten documents come near the limit
FAMILY = {"niah": "niah", "variable_tracking": "vt", "common_words_extraction": "cwe", "freq_words_extraction": "fwe"}
SHIMS = {
    "tokenizer.py": """
from tests.golden.ruler.describe import tokenize
class Tokenizer:
    text_to_tokens = staticmethod(tokenize)
def select_tokenizer(*_):
    return Tokenizer
""",
    "nltk/__init__.py": "",
    "nltk/tokenize.py": """
import re
def sent_tokenize(text):
    return [s for s in re.split(r"(?<=[.!?])\\s+", text) if s]
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("ruler-root", "memagent-root", "data"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", choices=("scorers", "generators"))
    args = parser.parse_args()
    if args.only != "generators":
        _write("scorers.json", score_all(args.ruler_root, args.memagent_root, cases()))
    if args.only != "scorers":
        _write("generators.json", generate_all(args.ruler_root, args.data))


def score_all(ruler: Path, memagent: Path, samples: Sequence[Case]) -> dict[str, Any]:
    """Return what the official scorers of checkouts say about the samples."""
    match = _load(ruler / "scripts/eval/synthetic/constants.py")
    evaluation = _load(memagent / "taskutils/memory_eval/utils/__init__.py")
    reward = _load(memagent / "verl/utils/reward_score/hotpotqa.py")
    math = _load(memagent / "verl/utils/reward_score/math.py")

    def boxed(response: str) -> str | None:
        try:
            return evaluation.extract_boxed_answer(response)
        except AssertionError:  # the official extraction stops the run here
            return None

    def digits(score: Callable[[Any], Any]) -> str:
        return "".join(str(int(score(case))) for case in samples)

    return {
        "predictions_sha256": hashlib.sha256(json.dumps(samples).encode()).hexdigest(),
        "em": digits(lambda c: evaluation.exact_match_score(c.response, c.answers[0])),
        "sub_em": digits(lambda c: evaluation.sub_exact_match_score(c.response, c.answers[0])),
        "f1": [round(evaluation.f1_score(c.response, c.answers[0])[0], 4) if c.response else 0 for c in samples],
        "string_match_all": [match.string_match_all([c.response], [c.answers]) for c in samples],
        "string_match_part": digits(lambda c: match.string_match_part([c.response], [c.answers]) / 100),
        "boxed_reward": digits(lambda c: reward.compute_score(c.response, c.answers)),
        "is_equiv": digits(lambda c: math.is_equiv(*c.latex)),
        "extract_boxed": _digest([boxed(c.response) for c in samples]),
        "extract_the_answer_is": _digest([evaluation.extract_answer(c.response) for c in samples]),
    }


def generate_all(ruler: Path, data: Path) -> dict[str, Any]:
    tasks = yaml.safe_load((ruler / "scripts/synthetic.yaml").read_text())
    golden: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shutil.copytree(ruler / "scripts/data", work / "data")
        for name, text in SHIMS.items():
            (work / "shims" / name).parent.mkdir(parents=True, exist_ok=True)
            (work / "shims" / name).write_text(text)
        _stand_in_data(work / "data/synthetic/json", data)
        for name, task in tasks.items():
            family = FAMILY.get(task["task"], "qa")
            new_tokens, records = _run_official(work, name, task)
            prompts = [record["input"] + record["answer_prefix"] for record in records]
            seen = [describe.facts(family, p, r["outputs"]) for p, r in zip(prompts, records, strict=True)]
            entry = golden[name] = {
                "limit": _size(name)[0],
                "new_tokens": new_tokens,
                "template": describe.template(family, prompts[0]),
                "facts": seen[0] if family == "fwe" else _common(seen),
                "longest": max(record["length"] for record in records),
                "shortest": min(record["length"] for record in records),
            }
            if family == "niah":
                pairs = zip(prompts, records, strict=True)
                entry["depths"] = sorted(d for p, r in pairs for d in describe.depths(p, r["outputs"]))
            print(name, entry["facts"], entry["shortest"], entry["longest"], flush=True)
    return golden


def _run_official(work: Path, name: str, task: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    constants = _load(work / "data/synthetic/constants.py").TASKS[task["task"]]
    command = [sys.executable, f"{task['task']}.py", "--save_dir", str(work / "out"), "--save_name", name]
    limit, count = _size(name)
    command += ["--tokenizer_path", "x", "--tokenizer_type", "hf", "--max_seq_length", str(limit)]
    command += ["--tokens_to_generate", str(constants["tokens_to_generate"]), "--num_samples", str(count)]
    command += ["--random_seed", str(SEED), "--template", constants["template"] + constants["answer_prefix"]]
    for option, value in task["args"].items():
        command += [f"--{option}", str(value)]
    path = os.pathsep.join((str(work / "shims"), str(ROOT), os.environ.get("PYTHONPATH", "")))
    subprocess.run(
        command, cwd=work / "data/synthetic", env={**os.environ, "PYTHONPATH": path}, check=True, timeout=300
    )
    lines = (work / "out" / name / "validation.jsonl").read_text().splitlines()
    return constants["tokens_to_generate"], [json.loads(line) for line in lines]


def _size(name: str) -> tuple[int, int]:
    return (QA_LENGTH, QA_COUNT) if name.startswith("qa") else (LENGTH, COUNT)


def _stand_in_data(folder: Path, data: Path) -> None:
    essays = " ".join(path.read_text(errors="replace") for path in sorted((data / "essays").glob("*.txt")))
    (folder / "PaulGrahamEssays.json").write_text(json.dumps({"text": essays}))
    (folder / "english_words.json").write_text("{}")
    items = json.loads((data / "hotpotqa_dev_distractor_75.json").read_text())
    for item in items:
        item["context"] = list(zip(item["context"]["title"], item["context"]["sentences"], strict=True))
    (folder / "hotpotqa.json").write_text(json.dumps(items))
    (folder / "squad.json").write_text(json.dumps(as_squad(items)))


def as_squad(items: list[dict[str, Any]]) -> dict[str, Any]:
    """SQuAD's layout: each item an article, its question asked of the first paragraph."""
    articles = []
    for item in items:
        question = {"question": item["question"], "answers": [{"text": item["answer"]}], "is_impossible": False}
        paragraphs = [{"context": "".join(sentences), "qas": []} for _, sentences in item["context"]]
        paragraphs[0]["qas"] = [question]
        articles.append({"title": item["context"][0][0], "paragraphs": paragraphs})
    return {"data": articles}


def _common(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what all samples agree on."""
    return {name: value for name, value in seen[0].items() if all(other[name] == value for other in seen)}


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"official_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _digest(values: list[str | None]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _write(name: str, value: dict[str, Any]) -> None:
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(facts, ensure_ascii=False)}" for key, facts in value.items())
    (HERE / name).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
