"""The conversations, their client and their engine; the measure; and our own layer, whole, as the command runs it."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock, PropertyMock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.exactness import command, layers
from benchmarks.exactness.client import INPUTS, play
from benchmarks.exactness.command import Log, Row, measure
from benchmarks.exactness.engine import Script
from tests.unit.gateway.templates import make_thinking_tokenizer

CONVERSATIONS = {each["name"]: each for each in INPUTS["conversations"]}
TOKENS = st.lists(st.integers(0, 2), max_size=4)
LOG = st.lists(st.tuples(TOKENS, TOKENS), max_size=4)
ROW = st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=6).map(
    lambda pairs: ([token for token, _ in pairs], [int(wanted) for _, wanted in pairs])
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_thinking_tokenizer()


def record(name: str) -> list[list[dict[str, Any]]]:
    """Play a conversation against answers that are as its script says; return the messages of each request."""
    steps = iter(CONVERSATIONS[name]["steps"])
    requests: list[list[dict[str, Any]]] = []

    def ask(body: dict[str, Any]) -> dict[str, Any]:
        requests.append(copy.deepcopy(body["messages"]))
        reply = next(steps)["reply"]
        functions = [each | {"arguments": json.dumps(each["arguments"])} for each in reply.get("calls", ())]
        calls = [{"id": f"{len(requests)}-{i}", "type": "function", "function": f} for i, f in enumerate(functions)]
        said = {"content": reply.get("text"), "reasoning": reply["thought"], "tool_calls": calls}
        return {"choices": [{"message": {"role": "assistant", **said}}]}

    play(CONVERSATIONS[name], ask)
    assert next(steps, None) is None
    return requests


@pytest.mark.parametrize(
    ("name", "thinks", "arguments"),
    [
        ("tools", True, '{"query"'),
        ("dropped-thoughts", False, ""),
        ("reserialised-arguments", True, '{"count":3,"query"'),
    ],
)
def test_the_client_sends_answers_back_in_its_own_way(name: str, thinks: bool, arguments: str) -> None:
    message = record(name)[1][2]
    assert bool(message.get("reasoning")) == ("reasoning" in message) == thinks
    assert message["tool_calls"][0]["function"]["arguments"].startswith(arguments)


def test_a_helper_begins_anew_and_a_summary_takes_the_place_of_the_history() -> None:
    main, helper = record("sub-agent")[0], record("sub-agent")[1]
    assert main[0]["role"] == helper[0]["role"] == "system"
    assert main[0] != helper[0]
    assert "Inn (518 km)" in record("sub-agent")[3][-1]["content"]
    assert [message["role"] for message in record("compaction")[4]] == ["system", "user"]
    assert "65 km) meet in Passau" in record("compaction")[4][1]["content"]


def test_replies_are_what_the_template_shows_but_for_their_own_spelling(tokenizer: Any) -> None:
    script = Script(tokenizer)
    reply = CONVERSATIONS["tools"]["steps"][0]["reply"]
    plain = script.write(reply, {})
    text = tokenizer.decode(plain)
    assert text.startswith(f"<think>\n{reply['thought']}\n</think>\n\n")
    assert '"arguments": {"query": "rivers that meet in Passau", "count": 3}' in text
    assert tokenizer.decode(script.write(reply, {"compact_json": True})) == text.replace(
        '{"query": "rivers that meet in Passau", "count": 3}', '{"query":"rivers that meet in Passau","count":3}'
    )
    split = script.write(reply, {"splits_a_word": True})
    assert tokenizer.decode(split) == text
    assert split != plain


def test_our_layer_trains_every_token_once_in_the_context_that_the_engine_saw(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer.save_pretrained(tmp_path / "model")
    words = ["--model", str(tmp_path / "model"), "--output", str(tmp_path / "results.json")]
    assert command.main([*words, "--layers", "tokentrue", "rllm", "--environments", str(tmp_path)]) == 0
    ours, missing = json.loads((tmp_path / "results.json").read_text())
    found = {each["name"]: each["exactness"] for each in ours["conversations"]}
    assert set(found) == set(CONVERSATIONS)
    for name, each in found.items():
        assert each["trained"] == each["sampled"] > 100, name
        assert (each["again"], each["unseen"]) == (0, 0), name
        assert each["rows"] == (2 if name in ("sub-agent", "compaction") else 1), name
    fix = "bash benchmarks/exactness/setup.sh rllm makes runs/exactness/rllm"
    assert missing["failure"] == f"there is no {tmp_path / 'rllm/bin/python'}; {fix}"
    printed = capsys.readouterr().out
    assert re.search(r"\| tokentrue \S+ \| 8 \| \d+ \| 100% \| 0 \| 0 \| 1.2 \|", printed)
    assert f"not run: rllm ({tmp_path / 'model'}): there is no" in printed


def test_a_server_of_a_layer_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Mock()  # its thread ends at once
    type(server).started = PropertyMock(side_effect=[False] * 100)
    monkeypatch.setitem(sys.modules, "uvicorn", Mock(Server=Mock(return_value=server)))
    with pytest.raises(RuntimeError, match="uvicorn did not start on port"):
        layers.serve(None)


def test_every_layer_has_an_environment() -> None:
    needs = Path(layers.__file__).with_name("requirements.txt").read_text().splitlines()
    assert {name.partition("-")[0] for name in layers.LAYERS} == {*command.OURS, *(line.split()[0] for line in needs)}


def test_setup_fails_where_a_layer_has_no_environment_or_half_of_one(tmp_path: Path) -> None:
    folder = shutil.copytree(Path(layers.__file__).parent, tmp_path / "benchmarks/exactness")
    (half := tmp_path / "runs/exactness/trl").mkdir(parents=True)
    for layer, said in (("trl", "trl: no environment with"), ("ttrl", "there is no layer ttrl")):
        words, environment = ["bash", str(folder / "setup.sh"), layer], {**os.environ, "PYTHON": "false"}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    assert not half.exists()


def list_places(row: Row) -> list[tuple[int, ...]]:
    """Return each token of a row behind all that stand before it."""
    return [tuple(row[0][: end + 1]) for end in range(len(row[0]))]


def make_rows(log: Log) -> list[Row]:
    """Return the rows that are right by definition: each call alone, its reply trained."""
    return [([*prompt, *reply], [0] * len(prompt) + [1] * len(reply)) for prompt, reply in log]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of a machine with other work
@given(LOG, st.lists(ROW, max_size=3))
def test_the_measure_counts_what_its_definition_says(log: list, rows: list) -> None:
    """A trained token is exact where the engine sampled it behind the same tokens."""
    whole = make_rows(log)
    sampled = Counter(place for row in whole for place, m in zip(list_places(row), row[1], strict=True) if m)
    trained = Counter(place for row in rows for place, m in zip(list_places(row), row[1], strict=True) if m)
    found = measure(log, rows)
    assert found["sampled"] == sum(len(reply) for _, reply in log)
    assert found["trained"] == sum(min(number, sampled[place]) for place, number in trained.items())
    assert found["unseen"] == sum(number for place, number in trained.items() if not sampled[place])
    assert found["trained"] + found["again"] + found["unseen"] == sum(sum(mask) for _, mask in rows)
    assert found["row tokens"] == sum(len(tokens) for tokens, _ in rows)
    assert found["twice"] == found["row tokens"] - len({place for row in rows for place in list_places(row)})
    assert (found["rollouts"], found["rows"]) == (1, len(rows))
