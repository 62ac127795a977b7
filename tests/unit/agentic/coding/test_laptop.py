"""The `laptop` preset: a language model without tools in its chat template gets some."""

from __future__ import annotations

from pathlib import Path

from agentic.coding.laptop.model import add_tools
from agentic.coding.prompts import EDIT
from agentic.memagent.tiny import start_model
from core.text.call_formats import HERMES, detect_format
from core.text.conversation import Renderer
from core.text.tokenizer import load_tokenizer


def test_a_model_without_tools_gets_them(tmp_path: Path) -> None:
    plain = start_model.build(tmp_path / "plain", seed=0)
    assert detect_format(load_tokenizer(plain)) is None
    add_tools(plain, tmp_path / "new" / "model")
    tokenizer = load_tokenizer(tmp_path / "new" / "model")
    assert detect_format(tokenizer) is HERMES
    renderer = Renderer(tokenizer)
    prompt = renderer.render([renderer.message("user", "a")], [EDIT.to_openai()])
    assert "edit(path, line, text, last)" in tokenizer.decode(prompt)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model"]
