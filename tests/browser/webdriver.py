"""A headless Chromium driven through ChromeDriver, with the standard library alone."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--allow-file-access-from-files", "--window-size=1280,900"),
)


class Browser:
    """One browser window."""

    def __init__(self, profile: Path, dark: bool = False) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.driver = subprocess.Popen(
            [str(DRIVER), f"--port={self.port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        flags = [*FLAGS, f"--user-data-dir={profile}"]
        flags += ["--blink-settings=preferredColorScheme=0"] if dark else []
        wanted = {
            "goog:chromeOptions": {"binary": CHROMIUM, "args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        self.session = ""
        for _ in range(100):
            try:
                answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise RuntimeError("chromedriver does not answer")
        self.session = f"/session/{answer['sessionId']}"

    def call(self, verb: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=verb)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, page: Path) -> None:
        self.call("POST", f"{self.session}/url", {"url": page.resolve().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        body = {"script": script, "args": list(arguments)}
        return self.call("POST", f"{self.session}/execute/sync", body)

    def find(self, css: str) -> str:
        found = self.call("POST", f"{self.session}/element", {"using": "css selector", "value": css})
        return str(next(iter(found.values())))

    def click(self, css: str) -> None:
        """A real click, by the mouse, on what can be seen."""
        self.call("POST", f"{self.session}/element/{self.find(css)}/click", {})

    def hover(self, css: str) -> None:
        origin = {"element-6066-11e4-a52e-4f735466cecf": self.find(css)}
        move = {"type": "pointerMove", "duration": 50, "origin": origin, "x": 0, "y": 0}
        mouse = {"type": "pointer", "id": "mouse", "actions": [move]}
        self.call("POST", f"{self.session}/actions", {"actions": [mouse]})

    def type(self, css: str, text: str) -> None:
        self.call("POST", f"{self.session}/element/{self.find(css)}/value", {"text": text})

    def choose(self, css: str, value: str) -> None:
        self.click(f'{css} option[value="{value}"]')

    def texts(self, css: str) -> list[str]:
        found = self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", css)
        return [str(text) for text in found]

    def console(self) -> list[str]:
        """What the page said in its console, warnings and errors."""
        log = self.call("POST", f"{self.session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", f"{self.session}/screenshot")))

    def close(self) -> None:
        try:
            self.call("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait(10)
