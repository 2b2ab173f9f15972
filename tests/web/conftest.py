"""A browser, and the page of a server that has nothing behind it."""

from __future__ import annotations

import pytest

from tests.web.browser import CHROMIUM, FLAGS, WAIT_MS
from tests.web.page_server import page_server


@pytest.fixture(scope="package")
def url():
    with page_server() as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def bare_page(browser, url):
    """The page of a server without models behind it; it must not raise."""
    context = browser.new_context(accept_downloads=True)
    context.set_default_timeout(WAIT_MS)
    opened, failures = context.new_page(), []
    opened.on("pageerror", lambda error: failures.append(str(error)))
    opened.goto(url)
    opened.locator("#talk-start:enabled").wait_for()
    yield opened
    context.close()
    assert failures == []
