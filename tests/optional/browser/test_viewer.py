"""The viewer in a real browser without a network: what models wrote is text, every token is there, nothing is loaded.

Needs Chromium: `apt-get install chromium`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.inspect.view import show_piece, show_text, write_record_view
from core.runs.record import RecordedRollout, RolloutLog, read_rollouts, record_rollout
from core.types import Completion, Task, Trajectory, Turn
from tests import kit
from tests.optional.browser.chromium import Browser, find_browser, open_browser

pytestmark = [pytest.mark.optional, pytest.mark.timeout(600)]

HOSTILE = [
    "</script><script>document.title = 'taken'</script>",
    "<img src=x onerror=\"document.title = 'taken'\"><svg onload=\"document.title = 'taken'\"></svg>",
    "<iframe src=\"javascript:parent.document.title = 'taken'\"></iframe><style>* { display: none }</style>",
    '<link rel=stylesheet href=http://127.0.0.1:1/x><a href="javascript:alert(1)" autofocus onfocus="alert(1)">x</a>',
    "\u202egnp.exe\u2066 \u200f\u061c \u2028 \x1b[31m\x00\x08 \ufeff\U000e0041",
    "{{7*7}} ${7*7} `${alert(1)}` \\u003cscript\\u003e &lt;b&gt; &#x3c;i&#x3e; ]]> <!--",
    "x" * 1_000_000,
    "\u0301" * 5000,
    "<script>" * 100_000,
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_browser()
    kit.require(program, "needs Chromium: apt-get install chromium")
    with open_browser(str(program)) as opened:
        yield opened


def record_hostile(path: Path) -> list[RecordedRollout]:
    """Record rollouts in which each hostile text is a token, a prompt, a role, a call of a tool, and all else."""
    log = RolloutLog(path, lambda ids: [HOSTILE[token].encode() for token in ids])
    records = []
    for place, text in enumerate(HOSTILE):
        completion = Completion((place, place), (-0.5, -0.25), "stop", text[:100])
        turns = (Turn(text[:100], (place,), completion, True), Turn("policy", (place,) * 4, completion, False))
        task = Task(f"{place} {text[:100]}", text, (text,))
        trajectory = Trajectory(
            task.task_id, turns, reward=0.5, log={"answer": text, "calls": [{"tool": text[:100], "said": text}]}
        )
        records.append(record_rollout("train", 1, place, task, trajectory))
    log.append(records)
    return list(read_rollouts(path))


def test_hostile_text_is_text_and_nothing_runs_or_is_loaded(browser: Browser, tmp_path: Path) -> None:
    rollouts = record_hostile(tmp_path / "rollouts.jsonl.gz")
    page = tmp_path / "view.html"
    assert write_record_view(tmp_path / "rollouts.jsonl.gz", page) == len(rollouts)
    browser.events.clear()
    browser.open(page)
    browser.wait_for(f"document.querySelectorAll('#list button').length === {len(rollouts)}")
    title = browser.evaluate("document.title")
    browser.press("e")  # the prompts
    for rollout, text in zip(rollouts, HOSTILE, strict=True):
        token = show_piece(text.encode())
        turns = browser.evaluate("[...document.querySelectorAll('#main .sampled')].map((box) => box.textContent)")
        assert turns == [token * len(turn.sampled) for turn in rollout.turns]
        # A prompt is filled in when the browser tells that its fold was opened, a moment later.
        browser.wait_for("[...document.querySelectorAll('.prompt .tokens')].every((box) => box.textContent)")
        prompts = browser.evaluate("[...document.querySelectorAll('.prompt .tokens')].map((box) => box.textContent)")
        assert prompts == [token * len(prompt) for prompt in rollout.prompts]
        assert browser.evaluate("document.querySelector('.facts dd').textContent") == show_text(text)
        whole = browser.evaluate("document.body.textContent")
        assert not set("\u202e\u2066\u200f\u061c\u2028\x1b\x00\x08\ufeff\U000e0041") & set(whole)
        browser.press("ArrowRight", "1", "2", "3", "4", "5", "g", "g", "j")
    assert browser.evaluate("document.title") == title != "taken"
    assert browser.evaluate("document.scripts.length") == 2
    assert browser.evaluate("document.querySelectorAll('img, svg, iframe, link, a, body style').length") == 0
    assert [told["request"]["url"] for told in browser.events_of("Network.requestWillBeSent")] == [page.as_uri()]
    for method in ("Page.javascriptDialogOpening", "Runtime.exceptionThrown", "Log.entryAdded"):
        assert browser.events_of(method) == []


def test_a_markup_that_got_into_the_page_would_not_run(browser: Browser, tmp_path: Path) -> None:
    """The page's policy is the second wall: this puts markup into the page, as a fault in the script would."""
    page = tmp_path / "view.html"
    record_hostile(tmp_path / "rollouts.jsonl.gz")
    write_record_view(tmp_path / "rollouts.jsonl.gz", page)
    browser.open(page)
    for text in HOSTILE[:4]:
        markup = page.read_text().replace('<main id="main">', f'{text}<main id="main">')
        (tmp_path / "fault.html").write_text(markup)
        browser.events.clear()
        browser.open(tmp_path / "fault.html")
        assert browser.evaluate("document.title") != "taken"
        assert any("Content Security Policy" in told["entry"]["text"] for told in browser.events_of("Log.entryAdded"))
