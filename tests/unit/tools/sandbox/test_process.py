"""The bounded capture of a stream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.tools.sandbox.process import OutputCapture


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(1, 40))
def test_head_and_tail_of_what_came(chunks: list[bytes], keep: int) -> None:
    capture, everything = OutputCapture(keep), b"".join(chunks)
    for chunk in chunks:
        capture.add(chunk)
    head, tail = bytes(capture._head), bytes(capture._tail)
    assert capture.total == len(everything)
    assert everything.startswith(head)
    assert everything.endswith(tail)
    assert len(head) + len(tail) == min(keep, len(everything))


def test_text_is_fit_for_a_terminal() -> None:
    capture = OutputCapture(100)
    capture.add(b"a\r\nb\tc\x1b[2J\xff\x07")
    assert capture.text() == "a\nb\tc\ufffd[2J\ufffd\ufffd"
