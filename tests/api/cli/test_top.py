"""`izwi top` shows the figures of /metrics."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from izwi_api.cli.top import COLUMNS, Interval, Reading, quantile, row, screen, summary

BEFORE = """
# TYPE izwi_engine_steps counter
izwi_engine_steps_total{model="tts"} 100
izwi_engine_rows_total{model="tts"} 150
izwi_engine_wait_seconds_total{model="tts"} 1
izwi_http_requests_total{route="/v1/audio/speech",status="200"} 10
izwi_http_requests_total{route="/v1/audio/speech",status="503"} 1
izwi_tokens_total{gen_ai_request_model="tts",kind="output"} 50
"""
NOW = """
izwi_engine_running{model="tts"} 3
izwi_engine_running{model="asr"} 0
izwi_engine_waiting{model="tts"} 2
izwi_engine_pages{model="tts"} 80
izwi_engine_available_pages{model="tts"} 20
izwi_engine_least_slack_seconds{model="tts"} 0.25
izwi_engine_least_slack_seconds{model="asr"} +Inf
izwi_engine_steps_total{model="tts"} 150
izwi_engine_rows_total{model="tts"} 300
izwi_engine_wait_seconds_total{model="tts"} 1.5
izwi_http_requests_total{route="/v1/audio/speech",status="200"} 14
izwi_http_requests_total{route="/v1/audio/speech",status="503"} 3
izwi_http_in_flight 5
izwi_tokens_total{gen_ai_request_model="tts",kind="output"} 90
izwi_tokens_total{gen_ai_request_model="tts",kind="input"} 7
# TYPE izwi_audio_time_to_first_audio_seconds histogram
izwi_audio_time_to_first_audio_seconds_bucket{gen_ai_request_model="tts",le="0.01"} 0
izwi_audio_time_to_first_audio_seconds_bucket{gen_ai_request_model="tts",le="0.02"} 8
izwi_audio_time_to_first_audio_seconds_bucket{gen_ai_request_model="tts",le="0.04"} 10
izwi_audio_time_to_first_audio_seconds_bucket{gen_ai_request_model="tts",le="+Inf"} 10
"""


def interval(now=NOW, before=BEFORE):
    return Interval(
        Reading.from_text(now, 12.0), Reading.from_text(before, 10.0) if before else None
    )


def test_a_row_has_the_figures_of_its_model_and_rates_of_the_interval() -> None:
    shown = dict(zip(COLUMNS, row(interval(), "tts"), strict=True))
    assert shown["run"] == "3"
    assert shown["wait"] == "2"
    assert shown["batch"] == "3"  # 150 rows in 50 steps
    assert shown["step"] == "10 ms"  # half a second of them
    assert shown["slack"] == "0.25 s"
    assert shown["memory"] == "75%"
    assert shown["tokens/s"] == "20"
    assert shown["first p50"] == "16.2 ms"  # 5 of 8 in the bucket
    assert shown["first p95"] == "35 ms"


def test_what_is_unknown_is_shown_as_unknown() -> None:
    shown = dict(zip(COLUMNS, row(interval(before=""), "asr"), strict=True))
    assert shown["slack"] == "-", "no answer plays"
    assert shown["batch"] == shown["step"] == shown["tokens/s"] == shown["first p50"] == "-"


def test_the_summary_counts_requests_and_failures_of_the_interval() -> None:
    shown = dict(summary(interval()))
    assert shown["requests in flight"] == "5"
    assert shown["requests/s"] == "3"
    assert shown["failed"] == "2"
    assert shown["live first audio p50/p95"] == "- / -"


def test_counters_of_a_restarted_server_start_from_zero() -> None:
    assert interval(now=BEFORE, before=NOW).grown("izwi_engine_steps_total", model="tts") == 100


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ({}, 0.5, None),
        ({0.1: 0.0, math.inf: 0.0}, 0.5, None),
        ({0.1: 10.0, math.inf: 10.0}, 0.5, 0.05),
        ({0.1: 0.0, 0.2: 10.0, math.inf: 10.0}, 1.0, 0.2),
        ({0.1: 1.0, math.inf: 10.0}, 0.95, 0.1),
    ],
)
def test_quantiles_are_linear_within_a_bucket(buckets, share, expected) -> None:
    found = quantile(buckets, share)
    assert found == (expected if expected is None else pytest.approx(expected))


def test_the_screen_fits_a_terminal_of_120_columns() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(screen("http://127.0.0.1:8000", interval()))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 120
    assert "asr" in text
    assert "…" not in text


def test_the_command_prints_the_figures_of_a_running_server(server, client, cli) -> None:
    body = {"model": "tts", "voice": "Ann", "input": "Hello.", "response_format": "pcm"}
    assert client.post("/v1/audio/speech", json=body).status_code == 200
    out = cli("top", "--once", "--server", server.url).stdout
    assert f"izwi at {server.url}" in out
    assert "tts" in out


def test_the_command_says_that_no_server_runs(cli) -> None:
    assert "--server" in cli("top", "--once", code=2).output


REPLICAS = """
izwi_engine_running{model="tts",replica="1"} 4
izwi_engine_running{model="tts",replica="0"} 3
izwi_engine_pages{model="tts",replica="0"} 10
izwi_engine_pages{model="tts",replica="1"} 10
izwi_engine_available_pages{model="tts",replica="0"} 10
izwi_engine_available_pages{model="tts",replica="1"} 5
izwi_replica{replica="0",status="ready"} 1
izwi_replica{replica="1",status="ready"} 0
izwi_replica{replica="1",status="drained"} 1
"""


def test_each_of_several_engines_has_a_row_with_its_number_and_its_own_figures() -> None:
    now = Interval(Reading.from_text(REPLICAS, 1.0))
    assert now.now.models() == [("tts", "0"), ("tts", "1")]
    first, second = (dict(zip(COLUMNS, row(now, *one), strict=True)) for one in now.now.models())
    assert (first["model"], first["run"], first["memory"]) == ("tts [0]", "3", "0%")
    assert (second["model"], second["run"], second["memory"]) == ("tts [1 drained]", "4", "50%")


def test_the_only_engine_has_no_number() -> None:
    assert row(interval(), "tts")[0] == "tts"
