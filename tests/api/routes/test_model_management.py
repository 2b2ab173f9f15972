"""Models are loaded, unloaded and pulled over HTTP by authorized callers, by name only."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from types import SimpleNamespace

import httpx
import pytest
from typer.testing import CliRunner

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry, embedded
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.errors import InvalidRequest
from izwi_api.cli.main import app as command_line
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.app import create_app
from izwi_api.serve.local_services import open_services
from izwi_api.services.models.changes import ModelChanges
from izwi_api.settings import Access, Settings, key_digest
from tests.api.conftest import listening, wait_for
from tests.models.tiny_asr import write_tiny_asr
from tests.models.tiny_tts import write_tiny_tts

HUB_ID = "somebody/listener"
SSE = {"accept": "text/event-stream"}
SAY = {
    "model": "speaker",
    "voice": "ryan",
    "input": "Hello there, my friend.",
    "response_format": "pcm",
    "max_new_tokens": 48,
}


@pytest.fixture(scope="module")
def hub_folder(tmp_path_factory):
    """What the hub's local cache would hold."""
    return write_tiny_asr(tmp_path_factory.mktemp("hub") / "snapshot")


@pytest.fixture
def hub(monkeypatch, hub_folder):
    """A hub with one model of two files, which drives the bars as the real client does."""

    def snapshot_download(hub_id, *, allow_patterns, local_files_only, tqdm_class=None):
        if hub_id != HUB_ID or local_files_only:
            raise OSError("404: not there")
        with tqdm_class(total=0, unit="B", desc="bytes") as count, tqdm_class(total=2) as files:
            for size in (1000, 500):
                count.total += size
                count.update(size)
                files.update(1)
        return str(hub_folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)


@pytest.fixture(scope="module")
def managed(tmp_path_factory):
    """A server with a voice and `--manage-models`; two more models fit."""
    root = tmp_path_factory.mktemp("managed")
    write_tiny_tts(root / "speaker", "custom_voice")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IZWI_HOME", str(root / "home"))
        config = EngineConfig(max_models=2, kv_bytes=1 << 24)
        services = open_services([str(root / "speaker")], RuntimeOptions("cpu", "float32"), config)
    settings = replace(services.settings, manage_models=True)
    with (
        listening(create_app(services.engine, services.registry, settings)) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield SimpleNamespace(client=client, services=services, url=f"http://127.0.0.1:{port}")


def change(managed, path, **body):
    with managed.client.stream("POST", path, headers=SSE, json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def stages(events):
    return [event["stage"] for event in events]


def served(managed):
    return [entry["id"] for entry in managed.client.get("/v1/models").json()["data"]]


def test_a_model_of_the_hub_comes_works_and_goes(managed, hub, tone_wav):
    events = change(managed, f"/v1/models/{HUB_ID.replace('/', '%2F')}/load")
    assert list(dict.fromkeys(stages(events))) == ["resolving", "downloading", "loading", "ready"]
    counted = [event for event in events if "done_bytes" in event][-1]
    assert (counted["done_bytes"], counted["total_bytes"]) == (1500, 1500)
    assert [event.get("loaded") for event in events] == [None] * (len(events) - 1) + [True]
    assert served(managed) == ["speaker", HUB_ID]
    files = {"file": ("a.wav", tone_wav(1.0))}
    heard = managed.client.post("/v1/audio/transcriptions", data={"model": HUB_ID}, files=files)
    assert heard.status_code == 200, heard.text

    again = managed.client.post(f"/v1/models/{HUB_ID}/load")
    assert (again.status_code, again.json()["stage"], again.json()["loaded"]) == (
        200,
        "ready",
        True,
    )

    full = managed.client.post("/v1/models/izwi-tiny-asr/load")
    assert full.status_code == 400
    assert "unload one first" in full.json()["error"]["message"]
    assert served(managed) == ["speaker", HUB_ID]

    assert stages(change(managed, f"/v1/models/{HUB_ID}/unload"))[-1] == "unloaded"
    assert served(managed) == ["speaker"]
    assert set(managed.services.engine.load) == {"speaker"}
    gone = managed.client.post(f"/v1/models/{HUB_ID}/unload", headers=SSE)
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.slow
def test_a_voice_is_not_disturbed_and_what_runs_ends(managed):
    alone = managed.client.post("/v1/audio/speech", json=SAY).content
    assert alone
    with managed.client.stream("POST", "/v1/audio/speech", json=SAY) as answer:
        audio = answer.iter_raw()
        begun = next(audio)
        assert stages(change(managed, "/v1/models/izwi-tiny-asr/load"))[-1] == "ready"
        managed.client.post("/v1/models/izwi-tiny-asr/unload")
        left = managed.client.post("/v1/models/speaker/unload").json()
        whole = begun + b"".join(audio)
    assert whole == alone
    assert (left["stage"], left["loaded"]) == ("unloaded", False)
    assert managed.client.post("/v1/audio/speech", json=SAY).status_code == 404
    assert managed.client.get("/readyz").status_code == 503
    # its folder is known from the start
    assert managed.client.post("/v1/models/speaker/load").json()["loaded"]
    assert managed.client.post("/v1/audio/speech", json=SAY).content == alone


async def test_an_unloading_model_is_not_loaded_and_two_callers_share_one_load(fake_world):
    engine, registry, models = fake_world()
    registry.models = models
    ended, removed = asyncio.Event(), []

    async def remove(name):
        removed.append(name)
        await ended.wait()

    engine.remove, registry.unload = remove, models.pop
    changes = ModelChanges(engine, registry, offline=True)
    leaving = changes.unload("izwi-tiny-tts")
    assert changes.unload("izwi-tiny-tts") is leaving
    with pytest.raises(InvalidRequest, match="still being unloaded"):
        changes.load("izwi-tiny-tts")
    ended.set()
    assert [p.stage async for p in leaving.follow()] == ["resolving", "unloading", "unloaded"]
    assert removed == ["izwi-tiny-tts"]


def test_pulling_serves_nothing(managed, hub):
    events = change(managed, "/v1/models/pull", model=HUB_ID)
    assert list(dict.fromkeys(stages(events))) == ["resolving", "downloading", "ready"]
    assert not events[-1]["loaded"]
    assert served(managed) == ["speaker"]


@pytest.mark.parametrize("path", ["load", "pull"])
def test_a_model_missing_at_the_hub_is_an_error(managed, hub, path):
    url = "/v1/models/pull" if path == "pull" else "/v1/models/some/body/load"
    body = {"model": "some/body"}
    answer = managed.client.post(url, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    last = change(managed, url, **body)[-1]
    assert last["error"]["code"] == "model_not_found"


def test_a_path_is_never_looked_at(managed, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tiny_asr(tmp_path / "some" / "body")
    paths = (str(tmp_path / "some" / "body"), "some/body", "./some/body", "some", "../x", "~/x")
    for path in (*paths, str(embedded()["izwi-tiny-asr"])):
        encoded = path.replace("/", "%2F").replace("~", "%7E")
        answer = managed.client.post(f"/v1/models/{encoded}/load")
        assert answer.status_code == 404, path
        assert managed.client.post("/v1/models/pull", json={"model": path}).status_code == 404
    assert served(managed) == ["speaker"]


def test_a_broken_checkpoint_is_refused_without_its_path(managed, monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "parrot"}')
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    answer = managed.client.post(f"/v1/models/{HUB_ID}/load")
    assert answer.status_code == 400
    assert str(tmp_path) not in answer.text


def test_pull_requires_a_model(managed):
    for body in ({}, {"model": ""}, {"model": 1}, {"model": HUB_ID, "path": "/"}):
        assert managed.client.post("/v1/models/pull", json=body).status_code == 400


def test_it_is_off_unless_asked_for(client, server):
    for path in ("tts/load", "tts/unload", "pull"):
        answer = client.post(f"/v1/models/{path}", json={"model": HUB_ID})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
    assert server.registry.names() == ["tts", "org/asr"]
    assert client.get("/v1/models").json()["manageable"] is False


def test_the_model_list_says_that_models_are_manageable(managed):
    assert managed.client.get("/v1/models").json()["manageable"] is True


def test_it_asks_for_the_key_that_all_ask_for(fake_world, tmp_path):
    engine, registry, models = fake_world()
    registry.models = models
    access = Access(api_key_digest=key_digest("sk-0123456789abcdef", "key"))
    settings = Settings(home=tmp_path, manage_models=True, access=access)
    with listening(create_app(engine, registry, settings)) as port:
        url = f"http://127.0.0.1:{port}/v1/models/nobody/unload"
        assert httpx.post(url).status_code == 401
        key = {"authorization": "Bearer sk-0123456789abcdef"}
        assert httpx.post(url, headers=key).status_code == 404


async def test_without_a_backend_no_model_is_loaded(fake_world):
    registry, engine = Registry(), fake_world()[0]
    engine.add = partial(AsyncEngine.add, engine)
    changes = ModelChanges(engine, registry, offline=True)
    with pytest.raises(InvalidRequest, match="this process loads no models"):
        async for _ in changes.load("izwi-tiny-chat").follow():
            pass
    assert not registry.names()


def test_the_command_line_asks_a_server(managed, hub):
    def run(*arguments, code=0):
        result = CliRunner().invoke(command_line, ["models", *arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    there = ("--server", managed.url)
    assert run("pull", HUB_ID, *there).stdout == f"{HUB_ID}\tready\n"
    assert run("load", HUB_ID, *there).stdout == f"{HUB_ID}\tready\n"
    assert run("list", *there).stdout.splitlines()[-1] == f"{HUB_ID}\ttranscription"
    assert run("unload", HUB_ID, *there).stdout == f"{HUB_ID}\tunloaded\n"
    assert "no model" in run("load", "nobody", *there, code=2).stderr
    assert "not found in the hub" in run("pull", "some/body", *there, code=2).stderr
    assert "--server" in run("load", HUB_ID, code=2).stderr


def test_a_download_is_given_up_when_the_server_stops(fake_world, tmp_path, monkeypatch):
    begun, ended = [], []

    def snapshot_download(hub_id, *, allow_patterns, local_files_only, tqdm_class):
        bar = tqdm_class(total=0, unit="B")
        begun.append(hub_id)
        try:
            while True:
                bar.update(1)
        finally:
            ended.append(hub_id)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    settings = Settings(home=tmp_path, manage_models=True)
    app = create_app(fake_world()[0], Registry(torch_backend("cpu", "float32")), settings)
    with listening(app) as port:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        body, head = json.dumps({"model": HUB_ID}), {"content-type": "application/json"}
        connection.request("POST", "/v1/models/pull", body, head)
        wait_for(lambda: begun)
        connection.close()
        assert httpx.get(f"http://127.0.0.1:{port}/livez").status_code == 200
        assert not ended, "it ended with its caller"
    wait_for(lambda: ended)
