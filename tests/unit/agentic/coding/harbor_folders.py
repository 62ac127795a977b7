"""Writes five tasks in Harbor's form, two of them as Terminal-Bench 2 writes its own. All words in them are ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

TOML = """schema_version = "1.4"

[task]
name = "tokentrue/NAME"

[metadata]
category = "files"

[verifier]
timeout_sec = 60.0

[agent]
timeout_sec = 60.0

[environment]
build_timeout_sec = 60.0
cpus = 1
memory_mb = 512
allow_internet = true
"""
TERMINAL_BENCH = """#!/bin/bash

apt-get update
apt-get install -y curl

# The installer of uv
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh

source $HOME/.local/bin/env

if [ "$PWD" = "/" ]; then
    echo "no working directory"
    exit 1
fi

uvx \\
  -p 3.13 \\
  -w pytest==8.4.1 \\
  -w pytest-json-ctrf==0.3.5 \\
  pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA

if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
IF_PYTEST = """#!/bin/bash
if pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
TASKS: Mapping[str, Mapping[str, str]] = {
    "answer-file": {  # Terminal-Bench's form, in an empty folder
        "instruction.md": "<!-- tokentrue canary 1234 -->\n\nWrite the word yes into the file /app/answer.txt.\n",
        "environment/Dockerfile": "FROM ubuntu:24.04\n\nWORKDIR /app\n",
        "tests/test.sh": TERMINAL_BENCH,
        "tests/test_outputs.py": """from pathlib import Path

def test_the_answer():
    assert Path("/app/answer.txt").read_text().strip() == "yes"
""",
        "solution/solve.sh": "#!/bin/bash\necho yes > /app/answer.txt\n",
    },
    "sorted-names": {  # Terminal-Bench's form, with a file
        "instruction.md": "Sort the lines of names.txt.\n",
        "environment/Dockerfile": (
            "# the image\nFROM python:3.13-slim-bookworm\nENV PYTHONUNBUFFERED=1 \\\n    PIP_NO_CACHE_DIR=1\n"
            "WORKDIR /app\nCOPY names.txt /app/\n"
        ),
        "environment/names.txt": "tom\nada\nleo\n",
        "tests/test.sh": TERMINAL_BENCH,
        "tests/test_outputs.py": """import expected
from pathlib import Path

def test_the_order():
    assert Path("/app/names.txt").read_text().split() == expected.NAMES
""",
        "tests/expected.py": "NAMES = ['ada', 'leo', 'tom']\n",
        "solution/solve.sh": "#!/bin/bash\nsort -o names.txt names.txt\n",
    },
    "two-halves": {  # a reward in parts
        "instruction.md": "Write one into a.txt and two into b.txt.\n",
        "environment/Dockerfile": "FROM debian:12\nWORKDIR /work\n",
        "tests/test.sh": """#!/bin/bash
reward=0
[ "$(cat a.txt)" = one ] && reward=.5
[ "$(cat b.txt)" = two ] && reward=$([ $reward = .5 ] && echo 1.0 || echo .5)
echo $reward > /logs/verifier/reward.txt
exit 3
""",
        "solution/solve.sh": "echo one > a.txt\necho two > b.txt\n",
    },
    "sum-script": {  # a reward in JSON, a program, and a folder of files
        "instruction.md": "Let ./sum.sh print the sum of the numbers in data/.\n",
        "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /srv/sum\nCOPY . .\n",
        "environment/sum.sh": "#!/bin/sh\necho 0\n",
        "environment/data/a.txt": "3\n",
        "environment/data/b.txt": "4\n",
        "tests/test.sh": "#!/bin/bash\nexec python3 /tests/check.py\n",
        "tests/check.py": """import json, subprocess
said = subprocess.run(["./sum.sh"], capture_output=True, text=True).stdout.strip()
with open("/logs/verifier/reward.json", "w") as file:
    json.dump({"length": len(said), "reward": float(said == "7")}, file)
""",
        "solution/solve.sh": "#!/bin/bash\nprintf '#!/bin/sh\\ncat data/*.txt | paste -sd+ | tr + \" \" | "
        "{ read a b; echo $((a+b)); }\\n' > sum.sh\n",
    },
    "broken-package": {  # a package to repair
        "instruction.md": "The test of stock.py fails. Repair the package.\n",
        "environment/Dockerfile": "FROM docker.io/library/python:3.12\nWORKDIR /app\nCOPY src ./src\nCMD [\"bash\"]\n",
        "environment/src/stock.py": "def total(prices):\n    return sum(prices) - 1\n",
        "tests/test.sh": IF_PYTEST,
        "tests/test_outputs.py": """import sys
sys.path.insert(0, "/app/src")
import stock

def test_the_total():
    assert stock.total([2, 3]) == 5
""",
        "solution/solve.sh": "#!/bin/bash\nsed -i 's/ - 1//' src/stock.py\n",
    },
}  # fmt: skip


def write_folder(folder: Path, name: str, **changed: str | None) -> Path:
    """Write a task; `changed` replaces the text of files; None leaves one out."""
    files: dict[str, str | None] = {"task.toml": TOML.replace("NAME", name), **TASKS[name], **changed}
    for path, text in files.items():
        if text is not None:
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_text(text)
            (folder / name / path).chmod(0o755 if path.endswith(".sh") else 0o644)
    return folder / name
