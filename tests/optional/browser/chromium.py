"""A headless Chromium without a network, driven over two pipes by its DevTools protocol; and the pictures of docs/.

python -m tests.optional.browser.chromium PAGE.html PICTURE.png [--keys 4 ArrowRight] [--script JS] [--height 900]
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAIT_S = 120.0
"""Bounds the seconds until the browser answers: the machine may be busy."""
SCREEN = (1200, 900)

# The browser reads commands from file 3 and writes to file 4. `unshare --net` leaves it not even a loopback device.
START = """exec unshare --net --map-root-user "$0" --headless --no-sandbox --disable-gpu --hide-scrollbars \
--remote-debugging-pipe --user-data-dir="$1" 3<&"$2" 4>&"$3" about:blank"""


class Browser:
    """Shows one page at a time. `events` are all that the browser told meanwhile, such as requests and dialogs."""

    def __init__(self, commands: int, answers: int):
        self.events: list[Mapping[str, Any]] = []
        self._commands = commands
        self._answers = answers
        self._read = b""
        self._number = 0
        self._session: str | None = None

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result. Raises RuntimeError if the browser refuses it."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            told = self._receive()
            if told.get("id") == self._number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']['message']}")
                return told["result"]
            self.events.append(told)

    def _receive(self) -> Mapping[str, Any]:
        while b"\0" not in self._read:
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._read += part
        line, _, self._read = self._read.partition(b"\0")
        told: Mapping[str, Any] = json.loads(line)
        return told

    def open(self, page: Path, size: tuple[int, int] = SCREEN) -> None:
        """Open a file of the disk, and wait until its script has shown it."""
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        width, height = size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page. Raises RuntimeError if it throws."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise RuntimeError(f"{expression}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true. Raises TimeoutError after WAIT_S."""
        deadline = time.monotonic() + WAIT_S
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(expression)
            time.sleep(0.05)

    def press(self, *keys: str) -> None:
        """Press and release keys, named as in KeyboardEvent.key."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def events_of(self, method: str) -> list[Mapping[str, Any]]:
        """Return the parameters of the events of one kind."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def take_picture(self, path: Path) -> None:
        """Write what the page shows as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def open_browser(program: str) -> Iterator[Browser]:
    """Run Chromium with a profile of its own while the block runs."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        commands_out, commands_in = os.pipe()
        answers_out, answers_in = os.pipe()
        process = subprocess.Popen(
            ["bash", "-c", START, program, profile, str(commands_out), str(answers_in)],
            pass_fds=(commands_out, answers_in),
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_out)
        os.close(answers_in)
        try:
            yield Browser(commands_in, answers_out)
        finally:
            os.close(commands_in)  # the browser ends with its pipe
            process.wait(timeout=60)
            os.close(answers_out)


def find_browser() -> str | None:
    """Return the path of Chromium, if it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--keys", nargs="*", default=[], help="keys to press, such as 4 or ArrowRight")
    parser.add_argument("--script", help="an expression to evaluate before the keys")
    parser.add_argument("--height", type=int, default=SCREEN[1])
    options = parser.parse_args(arguments)
    program = find_browser()
    if program is None:
        parser.error("needs Chromium: apt-get install chromium")
    with open_browser(program) as browser:
        browser.open(options.page, (SCREEN[0], options.height))
        if options.script:
            browser.evaluate(options.script)
        browser.press(*options.keys)
        browser.take_picture(options.picture)


if __name__ == "__main__":
    main()
