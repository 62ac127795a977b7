"""What an option or a field takes, and the words in which another value is refused."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from pydantic import FilePath, PositiveInt

from core.options import Device, Port, Share, argparse_type


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (PositiveInt, "-2", "greater than 0 (is '-2')"),
        (PositiveInt, "many", "a valid integer, unable to parse"),
        (Port, "99999", "less than or equal to 65535 (is '99999')"),
        (Share, "2", "less than or equal to 1 (is '2')"),
        (Device, "gpu", "'gpu' is neither auto, cpu, cuda nor cuda:N"),
        (FilePath, "nofile", "does not point to a file (is 'nofile')"),
    ],
)
def test_another_is_refused_under_the_name_of_its_option(
    kind: Any, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--it", type=argparse_type(kind))
    with pytest.raises(SystemExit):
        parser.parse_args(["--it", text])
    error = capsys.readouterr().err
    assert "argument --it: " in error
    assert message in error
