"""Dashboards, alerts and the runbook name metrics and settings that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from izwi.metrics import LOAD_KEYS
from izwi_api.http.auth import PROBES
from izwi_api.http.metrics import EngineFigures, HttpMetrics
from izwi_api.telemetry.device_figures import DeviceFigures

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "operations"
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
NAME = re.compile(r"\b(?:izwi|gen_ai_server|hw_gpu|hw_power)_[a-z0-9_]+\b")
# Labels that look like names of metrics.
LABELS = {"gen_ai_request_model", "gen_ai_operation_name", "izwi_api_key", "izwi_api"}
PROMTOOL = shutil.which("promtool")


class Engine:
    @property
    def load(self) -> dict[str, dict[str, float]]:
        return {"tts": dict.fromkeys(LOAD_KEYS, 1.0)}


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Names of all series that /metrics may have."""
    metrics = HttpMetrics()
    metrics.registry.register(EngineFigures(Engine()))
    metrics.registry.register(DeviceFigures(SimpleNamespace(nvmlDeviceGetCount=lambda: 0)))
    names = set()
    for family in metrics.registry.collect():
        endings = {
            "counter": ("_total",),
            "histogram": ("_bucket", "_sum", "_count"),
            "gauge": ("",),
        }[family.type]
        names |= {f"{family.name}{ending}" for ending in endings}
    return names


def alerts() -> list[dict]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return group["rules"]


def dashboard() -> dict:
    return json.loads((FOLDER / "dashboard.json").read_text())


def expressions() -> list[str]:
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_metrics_of_alerts_and_panels_exist(known) -> None:
    asked = [rule["expr"] for rule in alerts()] + expressions()
    names = {name for text in asked for name in NAME.findall(text)} - LABELS
    assert len(names) > 30
    assert names <= known


def test_what_fails_is_counted_without_probes_and_readings_of_metrics() -> None:
    """A draining server answers /readyz with 503, and no request has failed."""
    asked = [rule["expr"] for rule in alerts()] + expressions()
    series = [of for text in asked for of in re.findall(r"izwi_http_requests_total{([^}]*)}", text)]
    of_statuses = [of for of in series if "status" in of]
    assert len(of_statuses) == 3
    for of in of_statuses:
        (routes,) = re.findall(r'route!~"([^"]*)"', of)
        assert set(routes.split("|")) == PROBES | {"/metrics"}


def test_metrics_of_the_page_exist_and_it_lists_all_metrics(known) -> None:
    families = {re.sub("_(total|bucket|sum|count)$", "", name) for name in known}
    listed = set(re.findall(r"^\| `([a-z_0-9]+)`", PAGE, flags=re.MULTILINE))
    listed = {re.sub("_total$", "", name) for name in listed}
    engine = {name for name in families if name.startswith("izwi_engine_")}
    assert families - engine - listed == set(), "docs/operations.md lists them"
    assert {name for name in listed if name.startswith(("izwi_", "gen_ai_", "hw_"))} <= families
    for name in engine:
        assert f"`{name.removeprefix('izwi_engine_')}" in PAGE, name


# What an operator must be able to see, and where: each name is a metric, or one of its labels.
ASKED = {
    "duration of requests": "gen_ai_server_request_duration_seconds",
    "time to first token": "gen_ai_server_time_to_first_token_seconds",
    "time per output token": "gen_ai_server_time_per_output_token_seconds",
    "time to first audio": "izwi_audio_time_to_first_audio_seconds",
    "real-time factor": "izwi_audio_real_time_factor",
    "duration of audio": "izwi_audio_duration_seconds",
    "chunk interval": "izwi_audio_chunk_interval_seconds",
    "underrun seconds": "izwi_audio_underrun_seconds",
    "continuity by threshold": "izwi_audio_continuity_ok",
    "queue wait": "izwi_request_queue_seconds",
    "slack distribution": "izwi_engine_slack_seconds",
    "batch sizes": "izwi_engine_batch_rows",
    "step time by phase": "izwi_engine_step_phase_seconds",
    "KV use": "izwi_engine_available_pages",
    "hits on the device": "izwi_engine_prefix_positions_hit",
    "hits in host memory": "izwi_engine_host_page_hits",
    "hits on disk": "izwi_engine_disk_page_hits",
    "pauses": "izwi_engine_pauses",
    "resumes": "izwi_engine_resumes",
    "preemptions": "izwi_engine_preempted",
    "speculation drafted": "izwi_engine_drafted",
    "speculation accepted": "izwi_engine_accepted",
    "tokens by model": "izwi_tokens",
    "tokens by key": "izwi_key_tokens",
    "audio seconds by key": "izwi_key_audio_seconds",
    "memory of weights": "izwi_engine_weight_bytes",
    "memory of states": "izwi_engine_state_bytes",
    "memory of graphs": "izwi_engine_graph_bytes",
    "memory that is shared": "izwi_engine_shared_bytes",
    "memory of keys and values": "izwi_engine_page_bytes",
    "device utilisation": "hw_gpu_utilization_ratio",
    "restarts": "izwi_restarts",
    "moves to another replica": "izwi_requests_moved",
    "live turns": "izwi_live_turns",
    "interruptions": "izwi_live_interruptions",
    "end of speech to first audio": "izwi_live_latency_seconds",
}


def test_each_thing_that_an_operator_asks_has_a_metric(known) -> None:
    families = {re.sub("_(total|bucket|sum|count)$", "", name) for name in known}
    assert set(ASKED.values()) <= families


def test_each_alert_has_an_entry_in_the_runbook() -> None:
    headings = set(re.findall(r"^### (\w+)$", PAGE, flags=re.MULTILINE))
    assert {rule["alert"] for rule in alerts()} == headings
    for rule in alerts():
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_panels_fill_the_grid_without_overlaps_and_have_one_id_each() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_files_that_the_compose_file_mounts_exist() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    mounted = [
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", ())
        if volume.startswith("./")
    ]
    assert len(mounted) > 5
    for name in mounted:
        assert (FOLDER / name).is_file(), name
    prometheus = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    (job,) = prometheus["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["izwi:8000"]
    assert job["authorization"]["credentials_file"] == "/run/secrets/izwi_api_key"
    assert "izwi_api_key" in compose["services"]["prometheus"]["secrets"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_itself_accepts_the_unit(tmp_path) -> None:
    unit = (FOLDER / "izwi.service").read_text().replace("/opt/izwi/bin/izwi", "/bin/true")
    path = tmp_path / "izwi.service"
    path.write_text(unit)
    command = ["systemd-analyze", "verify", "--man=no", "--generators=no", path]
    done = subprocess.run(command, capture_output=True, text=True)
    named = [line for line in done.stderr.splitlines() if "izwi.service" in line]
    assert not named, named


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool (apt-get install prometheus)")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yaml"),
        ("test", "rules", "alerts_test.yaml"),
        ("check", "config", "--syntax-only", "prometheus.yaml"),
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_prometheus_itself_accepts_the_files(arguments) -> None:
    done = subprocess.run([PROMTOOL, *arguments], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool (apt-get install prometheus)")
def test_prometheus_itself_reads_each_expression_of_the_dashboard(tmp_path) -> None:
    asked = [
        text.replace("$__rate_interval", "1m").replace("$instance", ".*") for text in expressions()
    ]
    rules = [{"record": f"izwi:panel_{n}", "expr": text} for n, text in enumerate(asked)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([PROMTOOL, "check", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
