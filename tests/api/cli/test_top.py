"""`izwi top` shows the figures of /metrics."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from izwi_api.cli.top import COLUMNS, Interval, Reading, quantile, row, screen, summary
from izwi_api.http.auth import PROBES

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


# Two engines of two models with long names, that have been used: each cell is as wide as it gets.
FULL = "".join(
    f'''
izwi_engine_running{{model="{model}",replica="{replica}"}} 64
izwi_engine_waiting{{model="{model}",replica="{replica}"}} 448
izwi_engine_paused{{model="{model}",replica="{replica}"}} 12
izwi_engine_pages{{model="{model}",replica="{replica}"}} 80
izwi_engine_available_pages{{model="{model}",replica="{replica}"}} 20
izwi_engine_least_slack_seconds{{model="{model}",replica="{replica}"}} -12.25
izwi_engine_steps_total{{model="{model}",replica="{replica}"}} 1000
izwi_engine_rows_total{{model="{model}",replica="{replica}"}} 63200
izwi_engine_wait_seconds_total{{model="{model}",replica="{replica}"}} 23.4
izwi_engine_prefix_positions_asked_total{{model="{model}",replica="{replica}"}} 100
izwi_engine_prefix_positions_hit_total{{model="{model}",replica="{replica}"}} 100
izwi_replica{{replica="{replica}",status="drained"}} 1
izwi_tokens_total{{gen_ai_request_model="{model}",kind="output"}} 98765
izwi_audio_underrun_seconds_total{{gen_ai_request_model="{model}"}} 123.4
izwi_audio_real_time_factor_sum{{gen_ai_request_model="{model}"}} 12.3
izwi_audio_real_time_factor_count{{gen_ai_request_model="{model}"}} 99
izwi_audio_time_to_first_audio_seconds_bucket{{gen_ai_request_model="{model}",le="0.3"}} 8
izwi_audio_time_to_first_audio_seconds_bucket{{gen_ai_request_model="{model}",le="9.0"}} 10
izwi_audio_time_to_first_audio_seconds_bucket{{gen_ai_request_model="{model}",le="+Inf"}} 10
izwi_live_latency_seconds_bucket{{until="audio",le="0.4"}} 5
izwi_live_latency_seconds_bucket{{until="audio",le="12.8"}} 9
izwi_live_latency_seconds_bucket{{until="audio",le="+Inf"}} 9
izwi_http_in_flight 512
izwi_websocket_sessions 40
izwi_http_requests_total{{route="/v1/audio/speech",status="503"}} 4321
'''
    for model in ("izwi-tiny-tts", "Qwen3-TTS-12Hz-1.7B-CustomVoice")
    for replica in (0, 1)
)


def printed(width: int, interval: Interval) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(screen("http://127.0.0.1:8000", interval, console))
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_screen_of_two_engines_shows_each_cell_whole_at_any_width(width) -> None:
    full = interval(FULL, BEFORE)
    lines = printed(width, full)
    assert max(map(len, lines)) <= width
    text = " ".join(lines)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    for name in COLUMNS:
        assert name in text
    # cells of a line are words, and a name that is folded begins with the same letters
    words = [line.split() for line in lines]
    for model, replica in full.now.models():
        name, *cells = row(full, model, replica)
        assert name in text or len(name) > 30
        engine, callers = (" ".join(part).split() for part in (cells[:8], cells[8:]))
        begun = [of for of in words if of and of[0][:20] == name.split()[0][:20]]
        assert any(of[-len(engine + callers) :] == engine + callers for of in begun) or (
            any(of[-len(engine) :] == engine for of in begun)
            and any(of[-len(callers) :] == callers for of in begun)
        )
    for name, value in summary(full):
        assert f"{name} {value}" in text


def test_a_wide_terminal_has_one_table_and_a_narrow_one_two() -> None:
    full = interval(FULL, BEFORE)
    for width, tables in ((80, 2), (200, 1)):
        assert sum(line.startswith("model ") for line in printed(width, full)) == tables
    assert sum(line.startswith("model ") for line in printed(120, interval())) == 1


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0004, "0.4 ms"), (0.9994, "999 ms"), (0.9996, "1 s"), (12.34, "12.3 s")],
)
def test_times_are_shown_in_milliseconds_below_a_second(seconds, shown) -> None:
    text = f"""
izwi_engine_steps_total{{model="tts"}} 1
izwi_engine_wait_seconds_total{{model="tts"}} {seconds}
"""
    reading = Reading.from_text(text, 0.0)
    assert dict(zip(COLUMNS, row(Interval(reading), "tts"), strict=True))["step"] == shown


def test_a_draining_server_has_not_failed_its_probes() -> None:
    for route in PROBES:
        probes = f'izwi_http_requests_total{{route="{route}",status="503"}} 9\n'
        assert dict(summary(interval(NOW + probes)))["failed"] == "2"


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
