"""Every environment variable is in one table, sets its field, and is on one page."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path

import pytest

from izwi.errors import InvalidRequest
from izwi_api.environment import (
    VARIABLES,
    Variable,
    markdown,
    read_access,
    read_log,
    read_settings,
)
from izwi_api.settings import Settings

ROOT = Path(__file__).parents[2]
# Read by typer, as options of commands.
OPTIONS = {"IZWI_SERVER", "IZWI_MANAGE_MODELS", "IZWI_REQUIRE_CONSENT"}
# For a value that is none of these, a number other than the default is taken.
EXAMPLES = {
    "folder": "/elsewhere",
    "file": "/elsewhere",
    "0 or 1": "0",
    "`webrtc` or `silero`": "silero",
    "milliseconds; 0: as fast as it is generated": "400",
    "a key": "a-key-of-some-length",
    "text or json": "json",
    "`https://a.example,...` or `*`": "https://a.example",
    "`whsec_` and base64": "whsec_" + "ab12" * 8,
}
# These are refused alone.
TOGETHER = {"IZWI_WEBHOOK_URL", "IZWI_WEBHOOK_SECRET"}


def example_of(one: Variable) -> str:
    listed = re.fullmatch("`(.*)`", one.values)
    return EXAMPLES.get(one.values) or (listed[1] if listed else "17")


@pytest.mark.parametrize("one", VARIABLES, ids=lambda one: one.name)
def test_a_variable_sets_its_field_and_no_other(one: Variable) -> None:
    names = TOGETHER if one.name in TOGETHER else {one.name}
    environ = {other.name: example_of(other) for other in VARIABLES if other.name in names}
    settings, field = read_settings(environ), attrgetter(one.field)
    assert field(settings) != field(Settings())
    others = [other for other in VARIABLES if other.name not in names]
    for other in others:
        assert attrgetter(other.field)(settings) == attrgetter(other.field)(Settings()), other.name
    assert read_settings({one.name: " "}) == Settings(), "an empty variable counts as unset"


@pytest.mark.parametrize("text", ["x", "-1", "nan", "inf", "1e999"])
def test_the_error_names_a_variable_that_is_not_a_number(text: str) -> None:
    numbers = [one for one in VARIABLES if example_of(one) == "17"]
    assert len(numbers) > 12
    for one in numbers:
        with pytest.raises(InvalidRequest, match=one.name):
            read_settings({one.name: text})


def test_zero_is_taken_where_the_table_says_so() -> None:
    assert read_settings({"IZWI_DECODE_WORKERS": "0"}).decode_workers == 0
    assert read_settings({"IZWI_RESUME_WITHIN_S": "0"}).resume_within_s == 0.0
    for name in ("IZWI_MAX_AUDIO_S", "IZWI_MAX_SESSIONS", "IZWI_MAX_UPLOAD_MB"):
        with pytest.raises(InvalidRequest, match=name):
            read_settings({name: "0"})


def test_access_is_read_without_the_rest() -> None:
    assert read_access({"IZWI_API_KEYS": "keys.toml", "IZWI_MAX_AUDIO_S": "x"}).requires_key


def test_environment_page_equals_the_table_of_variables() -> None:
    page = (ROOT / "docs/environment.md").read_text(encoding="utf-8")
    assert page == markdown(), "run: python -m izwi_api.environment > docs/environment.md"


def test_code_and_docs_name_no_other_variable() -> None:
    known = {one.name for one in VARIABLES} | OPTIONS
    paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *(ROOT / "api").rglob("*.py")]
    for path in paths:
        if path.name == "CHANGELOG.md":
            continue
        named = set(re.findall(r"\bIZWI_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")))
        assert named <= known, f"{path}: {named - known}"


@pytest.mark.parametrize(
    ("name", "text"),
    [("IZWI_LOG_FORMAT", "xml"), ("IZWI_LOG_LEVEL", "loud"), ("IZWI_LOG_LEVEL", "izwi=")],
)
def test_the_error_names_a_log_setting_that_is_unknown(name: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        read_log({name: text})


def test_log_levels_are_those_of_all_modules_and_of_some() -> None:
    assert read_log({"IZWI_LOG_LEVEL": "Warning, izwi.engine=debug"}).levels == {
        "": "warning",
        "izwi.engine": "debug",
    }
