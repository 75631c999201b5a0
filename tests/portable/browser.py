"""Chromium driven over two pipes with its own protocol: a page, and what it says when
it is done.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page; the browser reads commands from descriptor 3 and answers on 4."""

    def __init__(
        self,
        program: str,
        profile: Path,
        *,
        width: int = 1200,
        flags: Sequence[str] = (),
    ) -> None:
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        line = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        given = [program, *FLAGS, *flags, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            ["bash", "-c", line, *given],
            pass_fds=(commands, answers),
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._last, self._rest, self._session = 0, b"", None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask(
            "Target.attachToTarget", targetId=target, flatten=True
        )["sessionId"]
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def ask(self, method: str, **given: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": given}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self._from, 1 << 16)
            assert read, "the browser ended"
            self._rest += read
        line, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(line))

    def value(self, expression: str) -> Any:
        made = self.ask(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in made, made
        return made["result"].get("value")

    def open(self, url: str, done: str, seconds: float = 60) -> None:
        """Returns when the expression `done` is true."""
        self.ask("Page.navigate", url=url)
        self.wait(done, seconds)

    def wait(self, done: str, seconds: float = 60) -> None:
        for _ in range(int(seconds * 10)):
            if self.value(done):
                return
            time.sleep(0.1)
        raise AssertionError(
            f"{done} did not come true: {self.value('document.body.innerText')}"
        )

    def picture(self, path: Path) -> None:
        path.write_bytes(
            base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])
        )
