"""The page's files fit together: ids, imports, addresses, and a policy without inline code."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import izwi_web
from izwi_api.serve.app import create_app
from izwi_api.settings import Settings
from tests.api.conftest import FakeEngine, FakeRegistry

FOLDER = Path(izwi_web.__file__).parent
SCRIPTS = sorted(FOLDER.glob("*.js"))
HTML = (FOLDER / "index.html").read_text()


class Elements(HTMLParser):
    """Every start tag of a document with its attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


ELEMENTS = Elements(HTML).found
IDS = {attributes["id"] for _, attributes in ELEMENTS if "id" in attributes}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_id_that_a_script_asks_for_is_in_the_page(script):
    asked = set(re.findall(r'byId\("([\w-]+)"\)', script.read_text()))
    asked |= set(re.findall(r'note\("([\w-]+)"', script.read_text()))
    assert asked <= IDS


def test_ids_are_unique():
    listed = [attributes["id"] for _, attributes in ELEMENTS if "id" in attributes]
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_import_is_exported(script):
    text = script.read_text()
    for names, name in re.findall(r'import \{([^}]*)\} from "\./([\w.-]+)"', text):
        for wanted in filter(None, map(str.strip, names.split(","))):
            assert_exported(name, wanted)
    for alias, name in re.findall(r'import \* as (\w+) from "\./([\w.-]+)"', text):
        for wanted in re.findall(rf"(?<![\w.\"/]){alias}\.(\w+)", text):
            assert_exported(name, wanted)


def assert_exported(name, wanted):
    pattern = rf"export (?:async )?(?:const|let|function\*?|class) {wanted}\b"
    assert re.search(pattern, (FOLDER / name).read_text()), f"{name} does not export {wanted}"


def test_every_tab_has_its_panel_and_its_module():
    tabs = [a for _, a in ELEMENTS if a.get("role") == "tab"]
    panels = {a["id"]: a["aria-labelledby"] for _, a in ELEMENTS if a.get("role") == "tabpanel"}
    assert {tab["aria-controls"]: tab["id"] for tab in tabs} == panels
    assert {f"{name}.js" for name in panels} <= {path.name for path in SCRIPTS}
    for name in panels:
        assert_exported(f"{name}.js", "start")


def test_every_control_has_a_name():
    labelled = {a["for"] for tag, a in ELEMENTS if tag == "label" and "for" in a}
    wrapped = set(re.findall(r'<label[^>]*>[^<]+(?:<span.*?</span>)?\s*<\w+ id="([\w-]+)"', HTML))
    wrapped |= set(re.findall(r'<label[^>]*><input [^>]*id="([\w-]+)"', HTML))
    hidden = {a.get("id") for _, a in ELEMENTS if a.get("aria-hidden") == "true"}
    for tag, attributes in ELEMENTS:
        if tag in ("input", "select", "textarea"):
            name = attributes["id"]
            assert name in labelled | wrapped | hidden, f"{name} has no label"


def test_nothing_is_inline_and_nothing_comes_from_elsewhere():
    assert not re.search(r"<style|\son\w+=|\sstyle=|javascript:", HTML)
    for tag, attributes in ELEMENTS:
        if tag == "script":
            assert attributes["src"].startswith("/page/")
        if tag == "link":
            assert attributes["href"].startswith("/page/")
    for path in (*SCRIPTS, FOLDER / "style.css"):
        elsewhere = re.findall(r"https?://(?!www\.w3\.org)[\w.]+", path.read_text())
        assert not elsewhere, path.name


def test_every_file_is_served_with_its_type_and_the_policy():
    types = {
        ".js": "text/javascript",
        ".css": "text/css",
        ".svg": "image/svg+xml",
        ".html": "text/html",
    }
    app = create_app(FakeEngine(), FakeRegistry(), Settings())
    with TestClient(app) as client:
        for path in FOLDER.iterdir():
            if path.suffix in types:
                answer = client.get(f"/page/{path.name}")
                assert answer.status_code == 200
                assert answer.headers["content-type"].startswith(types[path.suffix])
                assert "default-src 'self'" in answer.headers["content-security-policy"]
                assert "unsafe" not in answer.headers["content-security-policy"]
        for name in ("__init__.py", "py.typed", "nothing.js", "..%2fapp.js", "APP.JS", "a.b.js"):
            assert client.get(f"/page/{name}").status_code == 404


def colours(theme):
    """The colours of a theme: name -> (r, g, b), from 0 to 1."""
    style = (FOLDER / "style.css").read_text()
    block = style[style.index(theme) :].partition("}")[0]
    found = re.findall(r"--([\w-]+): #([0-9a-f]{6});", block)
    return {name: [int(hue[i : i + 2], 16) / 255 for i in (0, 2, 4)] for name, hue in found}


def contrast(one, other):
    """The contrast of two colours by WCAG 2, from 1 to 21."""

    def luminance(rgb):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [":root {", ':root[data-theme="dark"] {'])
def test_text_has_the_contrast_of_level_aa(theme):
    of = colours(theme)
    pairs = [
        (text, ground) for text in ("ink", "soft") for ground in ("paper", "surface", "sunken")
    ]
    pairs += [("ink", "action-soft"), ("soft", "action-soft"), ("action", "action-soft")]
    pairs += [("on-action", "action"), ("on-amber", "amber"), ("bad", "surface"), ("bad", "sunken")]
    pairs += [(name, "surface") for name in of if name.startswith("speaker-")]
    assert len(pairs) == 19
    low = {pair: round(contrast(of[pair[0]], of[pair[1]]), 2) for pair in pairs}
    assert {pair: ratio for pair, ratio in low.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("theme", [":root {", ':root[data-theme="dark"] {'])
def test_borders_of_controls_have_a_contrast_of_3(theme):
    of = colours(theme)
    for ground in ("paper", "surface", "sunken"):
        assert contrast(of["edge"], of[ground]) >= 3.0, ground
    style = (FOLDER / "style.css").read_text()
    for control in ("input, select, textarea {", "\nbutton {", ".drop {"):
        rule = style[style.index(control) :].partition("}")[0]
        assert "var(--edge)" in rule, control
