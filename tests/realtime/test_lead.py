"""How far ahead of playback audio is sent: the session's setting, else the server's."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from izwi.errors import InvalidRequest
from izwi_api.cli import serve as command
from izwi_api.cli.main import app
from izwi_api.environment import read_settings
from izwi_api.realtime.protocol.settings import RealtimeSettings, updated
from izwi_api.settings import Settings, is_lead_ms
from tests.realtime.world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        made = World(tmp_path_factory.mktemp("world"), patch)
        made.answer = "The train leaves at seven."
        yield made


async def ask(phone, engine):
    phone.send_event("response.create")
    await phone.until("response.created")
    await phone.until_answered()


@pytest.mark.parametrize(
    ("server_ms", "session_ms", "lead_ms"),
    [
        pytest.param(250, None, 250, marks=pytest.mark.slow),
        (600, None, 600),
        (0, None, None),
        (0, 400, 400),
        (250, 0, None),
    ],
)
def test_the_lead_of_a_session_overrides_the_servers(world, server_ms, session_ms, lead_ms):
    output = {} if session_ms is None else {"lead_ms": session_ms}
    # the engine is several times faster than the listener
    phone = world.talk(
        ask, session={"audio": {"output": output}}, server={"live_lead_ms": server_ms}, step_s=0.01
    )
    first_s = phone.of("response.output_audio.delta")[0].at_s
    sent_ms = greatest_ms = 0.0
    for happened in phone.of("response.output_audio.delta"):
        greatest_ms = max(greatest_ms, sent_ms - 1000 * (happened.at_s - first_s))
        sent_ms += len(happened.event["delta"]) * 3 / 4 / 48
    if lead_ms is None:
        assert greatest_ms > 1200  # nearly all of it
    else:
        assert lead_ms - 45 <= greatest_ms <= lead_ms + 1


@pytest.mark.parametrize("lead_ms", [-1, 1, 39, 60_001])
def test_a_lead_out_of_range_is_refused(lead_ms):
    assert not is_lead_ms(lead_ms)
    with pytest.raises(InvalidRequest, match="0 or from 40 to 60000") as refused:
        updated(RealtimeSettings(), {"audio": {"output": {"lead_ms": lead_ms}}})
    assert refused.value.param == "session.audio.output"
    with pytest.raises(InvalidRequest, match="IZWI_LIVE_LEAD_MS"):
        read_settings({"IZWI_LIVE_LEAD_MS": str(lead_ms)})


@pytest.mark.parametrize(
    ("options", "environment", "lead_ms"),
    [([], "", 250), ([], "0", 0), ([], "400", 400), (["--live-lead-ms", "0"], "400", 0)],
)
def test_the_option_of_serve_overrides_the_environment(monkeypatch, options, environment, lead_ms):
    started = []
    monkeypatch.setattr(command, "_run", lambda serve_options, *_: started.append(serve_options))
    monkeypatch.setenv("IZWI_LIVE_LEAD_MS", environment)
    ended = CliRunner().invoke(app, ["serve", *options])
    assert ended.exit_code == 0, ended.output
    assert started[0].settings.live_lead_ms == lead_ms
    assert Settings().live_lead_ms == 250


def test_serve_names_the_option_when_it_refuses_a_lead(monkeypatch):
    monkeypatch.setattr(command, "_run", lambda *_: None)
    ended = CliRunner().invoke(app, ["serve", "--live-lead-ms", "20"])
    assert ended.exit_code == 2
    assert "--live-lead-ms must be 0 or from 40 to 60000, got 20" in ended.output
