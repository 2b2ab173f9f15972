"""How the page looks, in both themes, on a desk and on a phone.

What fits, what is large enough to be hit, and what axe-core finds.

axe-core comes from npm: `npm install --prefix build/browser axe-core`, as `make nightly` does.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.web.browser import CHROMIUM, WAIT_MS

pytest.importorskip("playwright.sync_api", reason="pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")

ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("AXE_CORE", ROOT / "build/browser/node_modules/axe-core/axe.min.js"))
TABS = ("talk", "speak", "transcribe", "voices", "models", "metrics")
SIZES = {"desk": (1280, 800), "phone": (390, 844)}
RUN_AXE = """
async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.filter(({ impact }) => ["serious", "critical"].includes(impact))
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).slice(0, 3).join(" | ")}`);
}
"""
CONTROLS = "button, input, select, textarea, summary, [role=tab]"
# a link in a sentence, a checkbox with its label, and a slider are hit in other ways
OTHERS = ".link, .hidden, [type=checkbox], [type=range]"
SMALL_TARGETS = """
([controls, others]) => [...document.querySelectorAll(controls)]
  .filter((element) => element.checkVisibility() && !element.matches(others))
  .map((element) => [element.id || element.textContent, element.getBoundingClientRect()])
  .filter(([, box]) => box.height < 43.5 || box.width < 43.5)
  .map(([name, box]) => `${name}: ${box.width} x ${box.height}`)
"""
SHOW_ALL = """
(name) => {
  for (const part of document.querySelectorAll(`#live, #${name} [hidden]`)) part.hidden = false;
  for (const part of document.querySelectorAll(`#${name} details`)) part.open = true;
}
"""
IS_ON_TOP = """
(button) => {
  const box = button.getBoundingClientRect();
  const at = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  return button.contains(at);
}
"""


@pytest.fixture(params=SIZES)
def size(request):
    return request.param


@pytest.fixture(params=["light", "dark"])
def page(request, browser, url, size):
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=request.param
    )
    context.set_default_timeout(WAIT_MS)
    opened = context.new_page()
    opened.goto(url)
    opened.locator("#talk-start:enabled").wait_for()
    yield opened
    context.close()


def open_everything(page, name):
    """Show a tab with all that it can show."""
    page.locator(f"#tab-{name}").click()
    page.locator(f"#{name}").wait_for(state="visible")
    page.evaluate(SHOW_ALL, name)


@pytest.mark.skipif(not AXE.is_file(), reason="npm install --prefix build/browser axe-core")
def test_axe_finds_nothing_serious(page):
    page.evaluate(AXE.read_text())
    found = {}
    for name in TABS:
        open_everything(page, name)
        if violations := page.evaluate(RUN_AXE):
            found[name] = violations
    page.locator("#keys-button").click()
    if violations := page.evaluate(RUN_AXE):
        found["keys"] = violations
    assert found == {}


def test_targets_are_large_enough(page):
    small = {}
    for name in TABS:
        open_everything(page, name)
        if named := page.evaluate(SMALL_TARGETS, [CONTROLS, OTHERS]):
            small[name] = named
    assert small == {}


def test_conversation_and_state_share_the_first_screen(page, size):
    height = SIZES[size][1]
    bar = page.locator("#tabs").bounding_box()
    floor = bar["y"] if size == "phone" else height
    shown = ["#talk-state", "#talk-start", "#talk-mute", "#captions-empty", "#typed", "#talk-send"]
    if size == "desk":
        shown += ["#turn-total", "#phases", ".settings summary"]
        assert page.locator(".said").bounding_box()["y"] < 200
    for name in shown:
        box = page.locator(name).bounding_box()
        assert box["y"] >= 0, name
        assert box["y"] + box["height"] <= floor, name


def test_the_tab_bar_hides_no_button(page):
    """Each control can be scrolled to where nothing lies over it."""
    covered = []
    for name in TABS:
        open_everything(page, name)
        for button in page.locator(f"#{name} button").all():
            if not button.is_visible() or button.is_disabled():
                continue
            button.evaluate("button => button.scrollIntoView({ block: 'nearest' })")
            if not button.evaluate(IS_ON_TOP):
                covered.append(f"{name}: {button.inner_text()}")
    assert covered == []
