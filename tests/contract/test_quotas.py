"""docs/quotas.md says of each refusal and of the audit log what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from izwi.errors import (
    DeadlineExceeded,
    DeviceFull,
    EngineStopped,
    IzwiError,
    Overloaded,
    QuotaExceeded,
    RateLimited,
    StorageFull,
)
from izwi_api.cli.keys import app
from izwi_api.drawing import job_server
from izwi_api.http import drain
from izwi_api.http.audit import _asked, _Call
from izwi_api.http.errors import _MAX_SDK_WAIT_S, response_to
from izwi_api.routes import videos
from izwi_api.sessions import open_sessions
from izwi_api.usage.limits import Clocks, KeyLimits, Meter, next_day_in_s

PAGE = (Path(__file__).parents[2] / "docs" / "quotas.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ")
]


def retry_after(code: str, words: str) -> str:
    """Return what the page says for the row of a code whose reason has some words."""
    (row,) = [row for row in ROWS if row[0].startswith(f"`{code}`") and words in row[1]]
    return row[2]


def seconds(error: IzwiError) -> str:
    return str(response_to(error).headers.get("retry-after"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Overloaded("full"), "the queue of the model"),
        (Overloaded("late"), "not scheduled"),
        (Overloaded("limit"), "--max-in-flight"),
        (Overloaded("fetches"), "fetched from URLs"),
        (Overloaded("", retry_after_s=open_sessions._RETRY_AFTER_S), "of live sessions"),
        (Overloaded("", retry_after_s=job_server._RETRY_AFTER_S), "images or videos"),
        (Overloaded("", retry_after_s=videos._RETRY_AFTER_S), "images or videos"),
        (EngineStopped("over"), "the server stops"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_retry_after_is_what_the_page_says(error: IzwiError, words: str) -> None:
    assert retry_after(error.code, words) == seconds(error)


def test_a_stopping_server_says_the_same_seconds_without_asking_the_engine() -> None:
    assert (
        retry_after("engine_stopped", "the server stops")
        == (drain._refusal().headers["retry-after"])
    )


def test_codes_and_types_of_the_page_are_those_of_the_errors() -> None:
    for error, status in (
        (RateLimited("a"), 429),
        (QuotaExceeded("a"), 429),
        (Overloaded("a"), 503),
        (DeviceFull("a"), 503),
        (EngineStopped("a"), 503),
        (DeadlineExceeded("a"), 504),
        (StorageFull("a"), 507),
    ):
        response = response_to(error)
        body = json.loads(bytes(response.body))["error"]
        assert response.status_code == status
        assert f"`{body['code']}`" in PAGE
        if status == 429:
            assert f"| `{body['code']}` (`{body['type']}`) |" in PAGE
        assert ("retry-after" in response.headers) == (status in (429, 503))


def test_a_key_learns_when_its_next_request_and_its_next_day_begin() -> None:
    now_s = 40_000.0
    meter = Meter(KeyLimits(6, 100), Clocks(lambda: 0.0, lambda: now_s))
    for _ in range(6):
        meter.admit()
    with pytest.raises(RateLimited) as refused:
        meter.admit()
    assert seconds(refused.value) == "10", "six a minute: one each ten seconds"
    with pytest.raises(QuotaExceeded) as used_up:
        meter.charge({"characters": 101})
    assert seconds(used_up.value) == f"{next_day_in_s(now_s):g}"
    assert response_to(used_up.value).headers["x-should-retry"] == "false"
    assert f"`x-should-retry: false` if that is more than {_MAX_SDK_WAIT_S}" in PAGE
    for name in meter.headers():
        what = name.removeprefix("x-ratelimit-").split("-", 1)[1]
        assert f"`{name}`" in PAGE or f"`{what}`" in PAGE


def test_the_page_lists_each_field_of_the_audit_log() -> None:
    fields = {"time", "request_id", *_Call(lambda: 0.0).fields()}
    fields |= _asked({"type": "http", "method": "GET", "state": {}}).keys()
    listed = "".join(row[0] for row in ROWS if row[0].startswith("`"))
    assert fields <= set(re.findall(r"`(\w+)`", listed))


def test_the_page_makes_a_key_with_options_that_exist(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("IZWI_HOME", str(tmp_path))
    (command,) = re.findall(r"^izwi keys (add .*)$", PAGE, flags=re.MULTILINE)
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output
    text = (tmp_path / "keys.toml").read_text()
    for name in re.findall(r"--([a-z-]+)", command):
        assert name.replace("-", "_") in text
