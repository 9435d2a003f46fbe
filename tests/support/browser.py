"""A real browser without a window, driven over the pipe of its DevTools: what a page asks for, says and shows."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe "
    "--disable-background-networking --disable-component-update --disable-sync"
)

DRAWN = """(() => {
    const canvases = node => [...node.querySelectorAll("*")].flatMap(one =>
        one.tagName === "CANVAS" ? [one] : one.shadowRoot ? canvases(one.shadowRoot) : []);
    const colours = [[11, 107, 203], [217, 89, 11], [26, 138, 74], [133, 70, 196]];
    const has_line = canvas => {
        const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] > 200 && colours.some(one => one.every((part, k) => Math.abs(data[i + k] - part) < 9)))
                return true;
        return false;
    };
    return Object.fromEntries([...document.querySelectorAll(".chart")].map(chart =>
        [chart.querySelector("h3").textContent, canvases(chart).some(has_line)]));
})()"""
"""For each chart whether a line in one of the first colours can be seen."""
TOO_WIDE = """[...document.querySelectorAll('main *')].filter(element => !element.closest('.strip, .scroll')
    && element.getBoundingClientRect().right > innerWidth + 1).map(element => element.outerHTML.slice(0, 80))"""
"""What of a page a window cuts off."""


class Browser:
    """One tab. `requests` are all addresses that were asked for, `errors` what stands in red in its console."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader, self.writer = reader, writer
        self.buffer = b""
        self.number = 0
        self.session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, address: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Loads a page, in a window of this size, and waits until its curves are drawn."""
        phone = {"mobile": width < 600, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, **phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.requests, self.errors = [], []
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")
        self.wait_for("[...document.querySelectorAll('.plot')].every(plot => plot.firstElementChild?.shadowRoot)")
        self.evaluate("new Promise(done => setTimeout(done, 300))")

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript in the page, promises awaited."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, condition: str, *, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < end, condition
            time.sleep(0.1)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            code = {"Tab": 9, "Enter": 13}[key]
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(taken["data"]))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self.note(answer)

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            assert select.select([self.reader], [], [], 60)[0], "the browser does not answer"
            read = os.read(self.reader, 1 << 20)
            assert read, "the browser has gone"
            self.buffer += read
        text, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def note(self, event: dict[str, Any]) -> None:
        about = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(str(about["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if about["type"] in ("error", "warning", "assert"):
                self.errors.append(str(about["args"]))
            case "Log.entryAdded" if about["entry"]["level"] in ("error", "warning"):
                self.errors.append(str(about["entry"]))


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A browser whose profile is in `folder`; it ends with the block."""
    assert PROGRAM is not None
    (to_read, theirs_out), (theirs_in, to_write) = os.pipe(), os.pipe()
    script = f"exec {PROGRAM} {OPTIONS} --user-data-dir={folder} 3<&{theirs_in} 4>&{theirs_out}"
    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(
        ["bash", "-c", script], pass_fds=(theirs_in, theirs_out), start_new_session=True, **silent
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        browser = Browser(to_read, to_write)
        yield browser
        browser.session = None
        browser.call("Browser.close")
        process.wait(20)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()
        os.close(to_read)
        os.close(to_write)
