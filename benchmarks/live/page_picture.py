"""Draw docs/images/page.png: the web page in chromium, after two typed questions and a spoken one.

`pip install 'izwi[browser]'` and chromium are needed, and a server with the embedded models.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, sync_playwright

from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from izwi_api.client import Client
from tests.web.browser import CHROMIUM, FLAGS, WAIT_MS

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "page.png"
TYPED = ("What is 12 times 7?", "And twice that?")
SPOKEN = "What is the capital of France?"
_TYPED_S = 25  # until the spoken question begins
_SIZE = {"width": 1180, "height": 720}
_SHOWN = {"x": 0, "y": 0, "width": 1180, "height": 349}


def write_microphone(path: Path, server: str) -> None:
    """Write what the microphone hears: the question, after the typed ones are answered."""
    with Client(server) as client:
        spoken = client.say(SPOKEN, voice="basil", seed=0)
    silence = np.zeros(spoken.sample_rate, np.float32)
    samples = np.concatenate([*[silence] * _TYPED_S, spoken.samples, *[silence] * 60])
    path.write_bytes(wav_header(spoken.sample_rate, 2 * len(samples)) + to_s16le(samples))


def talk(page: Page) -> None:
    """Type questions and speak one; return while the last is being answered."""
    page.locator("#talk-start:enabled").click()
    page.locator("#talk-state[data-state=listening]").wait_for()
    for question in TYPED:
        page.fill("#typed", question)
        page.press("#typed", "Enter")
        page.locator("#talk-state[data-state=speaking]").wait_for()
        page.locator("#talk-state[data-state=listening]").wait_for()
    page.locator("#talk h1").click()
    page.locator("#talk-state[data-state=speaking]").wait_for()
    page.wait_for_timeout(1_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="http://127.0.0.1:8000")
    server = parser.parse_args().server
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        microphone = Path(folder) / "microphone.wav"
        write_microphone(microphone, server)
        heard = f"--use-file-for-fake-audio-capture={microphone}%noloop"
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, heard])
        context = browser.new_context(
            viewport=_SIZE, device_scale_factor=1.25, color_scheme="light"
        )
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.goto(server)
        talk(page)
        page.screenshot(path=PICTURE, clip=_SHOWN)
        browser.close()


if __name__ == "__main__":
    main()
