"""Addresses of services in the URLs of a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.config import RecipeError
from core.config.load import read_addresses


def test_a_name_stands_for_the_address_of_its_service(tmp_path: Path) -> None:
    path = tmp_path / "addresses.yaml"
    path.write_text("retrieval: http://127.0.0.1:4000\n")
    assert read_addresses("m.addresses", str(path))("{retrieval}/retrieve") == "http://127.0.0.1:4000/retrieve"
    assert read_addresses("m.addresses", None)("http://127.0.0.1:1/x") == "http://127.0.0.1:1/x"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "m.addresses: .*No such file.*start the services"),
        ("[", "is no YAML"),
        ("- a", "must map names to URLs"),
        ("experts: http://127.0.0.1:1", "no address of 'retrieval'.*it has experts"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "addresses.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RecipeError, match=said):
        read_addresses("m.addresses", str(path))("{retrieval}/retrieve")
