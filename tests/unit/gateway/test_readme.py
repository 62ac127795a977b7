"""The example of core/gateway/README.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import core.gateway

from .templates import make_tokenizer


def test_the_example_of_the_readme_answers(tmp_path, monkeypatch, capsys) -> None:
    make_tokenizer("qwen3").save_pretrained(tmp_path)
    monkeypatch.setattr("core.hub.resolve", lambda name, *, weights: tmp_path)  # the hub's tokenizer
    readme = (Path(core.gateway.__file__).parent / "README.md").read_text()
    exec(re.findall(r"```python\n(.*?)```", readme, re.S)[0], {"__name__": "example"})
    answer, ids = capsys.readouterr().out.splitlines()
    assert answer == "Twelve."
    assert ids == str(tuple(make_tokenizer("qwen3").encode("Twelve.")))
