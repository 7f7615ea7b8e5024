"""Chromium without a window, driven over its debugging pipe; no driver has to be installed or kept."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
    *("--force-color-profile=srgb", "--font-render-hinting=none"),
)
PATIENCE = 60.0
PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class ProtocolFailed(AssertionError):
    """The browser could not do what it was asked for."""


class Browser:
    """A browser with a profile of its own."""

    def __init__(self, profile: Path, *flags: str) -> None:
        assert PROGRAM is not None
        ours_read, theirs_write = map(_high, os.pipe())
        theirs_read, ours_write = map(_high, os.pipe())
        log = os.open(profile / "browser.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        words = [PROGRAM, *FLAGS, *flags, f"--user-data-dir={profile}", "about:blank"]
        actions = [
            (os.POSIX_SPAWN_DUP2, theirs_read, 3),
            (os.POSIX_SPAWN_DUP2, theirs_write, 4),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ]
        self.pid = os.posix_spawn(PROGRAM, words, os.environ | {"HOME": str(profile)}, file_actions=actions)
        for handle in (theirs_read, theirs_write, log):
            os.close(handle)
        self._read, self._write = ours_read, ours_write
        self._received, self._number = b"", 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str = "", /, **parameters: Any) -> dict[str, Any]:
        """Call a method of the debugging protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.next_message(PATIENCE)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise ProtocolFailed(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def next_message(self, seconds: float) -> dict[str, Any]:
        """Return the next message of the browser; events are kept in `events`, too."""
        end = time.monotonic() + seconds
        while b"\0" not in self._received:
            left = end - time.monotonic()
            assert left > 0, "the browser does not answer"
            if select.select([self._read], [], [], left)[0]:
                chunk = os.read(self._read, 1 << 20)
                assert chunk, "the browser is gone"
                self._received += chunk
        text, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message

    def tab(self, width: int = 1280, height: int = 900, **features: str) -> "Tab":
        """Open a tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Tab(self, session, width, height)

    def close(self) -> None:
        """End the browser."""
        os.kill(self.pid, signal.SIGTERM)
        end = time.monotonic() + 10
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
            select.select([], [], [], 0.02)
        os.close(self._read)
        os.close(self._write)


class Tab:
    """A page in the browser."""

    def __init__(self, browser: Browser, session: str, width: int, height: int) -> None:
        self.browser, self._session = browser, session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(width, height)

    def call(self, method: str, /, **parameters: Any) -> dict[str, Any]:
        """Call a method for this page."""
        return self.browser.call(method, self._session, **parameters)

    def size(self, width: int, height: int, scale: float = 1, phone: bool = False) -> None:
        """Choose the size of the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=phone,
        )

    def scheme(self, name: str) -> None:
        """Pretend that the system is light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def scripts(self, allowed: bool) -> None:
        """Turn JavaScript on or off for pages that are opened from now on."""
        self.call("Emulation.setScriptExecutionDisabled", value=not allowed)

    def go(self, address: str) -> None:
        """Open an address and wait until it is there."""
        self._loading(lambda: self.call("Page.navigate", url=address))

    def _loading(self, act: Any) -> None:
        self.browser.events.clear()
        act()
        end = time.monotonic() + PATIENCE
        while not any(
            event["method"] == "Page.loadEventFired" and event.get("sessionId") == self._session
            for event in self.browser.events
        ):
            self.browser.next_message(end - time.monotonic())

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, script: str, seconds: float = 30) -> Any:
        """Wait until an expression is true in the page: the page itself looks whenever it changes."""
        waiting = f"""new Promise((done, late) => {{
            const ask = () => {{ try {{ return {script}; }} catch {{ return null; /* not there yet */ }} }};
            const look = () => {{ const seen = ask(); if (seen) {{ end(); done(seen); }} return seen; }};
            const watch = new MutationObserver(look);
            const fail = () => {{ end(); late(new Error('not in time: ' + {json.dumps(script)})); }};
            const timer = setTimeout(fail, {seconds * 1000});
            const end = () => {{ watch.disconnect(); clearTimeout(timer); }};
            const all = {{subtree: true, childList: true, attributes: true, characterData: true}};
            if (!look()) watch.observe(document, all);
        }})"""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.run(waiting)
            except ProtocolFailed:  # the page was left meanwhile: look at the next one
                if time.monotonic() > end:
                    raise

    def text(self, selector: str) -> str:
        """Return the visible text of an element."""
        text: str = self.run(f"document.querySelector({json.dumps(selector)}).innerText")
        return text

    def click(self, selector: str, loads: bool = False) -> None:
        """Click on the middle of an element, as a person does."""
        place = self.run(
            f"""(() => {{ const each = document.querySelector({json.dumps(selector)});
            each.scrollIntoView({{block: 'center'}}); const box = each.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2]; }})()"""
        )

        def press() -> None:
            for kind in ("mousePressed", "mouseReleased"):
                self.call(
                    "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
                )

        self._loading(press) if loads else press()

    def press(self, key: str, code: int, loads: bool = False) -> None:
        """Press a key."""

        def strike() -> None:
            text = {"text": "\r"} if key == "Enter" else {}
            for kind in ("keyDown", "keyUp"):
                more = text if kind == "keyDown" else {}
                self.call(
                    "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more
                )

        self._loading(strike) if loads else strike()

    def picture(self, path: Path, whole: bool = True) -> None:
        """Write a screenshot."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Return the errors that the page has caused since it was opened: of scripts, and of its policy."""
        self.run("0")  # what was reported before this answer has arrived
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self._session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found


@contextmanager
def browsing(*flags: str) -> Iterator[Browser]:
    """Run a browser until the block ends."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(Path(profile), *flags)
        try:
            yield browser
        finally:
            browser.close()


def _high(handle: int) -> int:
    """Return a copy of a descriptor that is not one of those with a meaning."""
    copy = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(handle)
    return copy
