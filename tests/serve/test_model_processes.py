"""Models are loaded and unloaded while two API servers and two engines serve streams."""

from __future__ import annotations

import httpx
import pytest

from izwi.checkpoints.added import add
from tests.models.adapter_files import draw_adapter, merge, write_adapter
from tests.models.tiny_chat import UNTIED, write_tiny_chat
from tests.serve.test_replica_processes import ASK, SPEECH, listen, replicated

LOAD, UNLOAD = "/v1/models/izwi-tiny-asr/load", "/v1/models/{}/unload"
OPTIONS = ("--model", "izwi-tiny-tts", "--manage-models", "--max-models", "2", "--api-servers", "2")


def names(server, num_looks=12):
    """What API servers list, each asked on connections of its own."""
    return {
        tuple(one["id"] for one in httpx.get(f"{server.url}/v1/models").json()["data"])
        for _ in range(num_looks)
    }


def post(server, path, **body):
    return httpx.post(server.url + path, json=body, timeout=120)


@pytest.mark.slow
def test_a_model_comes_to_all_engines_and_goes_while_streams_run(tmp_path):
    with replicated(tmp_path, *OPTIONS) as server:
        expected = [one.join() for one in listen(server, 6, 60)]
        listeners = listen(server, 6, 60)
        loaded = post(server, LOAD)
        assert (loaded.status_code, loaded.json()["loaded"]) == (200, True), loaded.text
        assert [one.join() for one in listeners] == expected
        assert names(server) == {("izwi-tiny-tts", "izwi-tiny-asr")}
        assert len(server.processes("engine")) == 4  # one of its own beside each engine
        full = post(server, "/v1/models/izwi-tiny-chat/load")
        assert full.status_code == 400
        assert "unload one first" in full.text
        wav = post(server, SPEECH, **(ASK | {"input": "Hello.", "response_format": "wav"})).content
        for _ in range(4):
            heard = httpx.post(
                f"{server.url}/v1/audio/transcriptions",
                data={"model": "izwi-tiny-asr"},
                files={"file": ("a.wav", wav)},
                timeout=60,
            )
            assert heard.status_code == 200, heard.text

        listeners = listen(server, 6, 60)
        assert post(server, UNLOAD.format("izwi-tiny-asr")).json()["stage"] == "unloaded"
        assert len(server.processes("engine")) == 2
        gone = post(server, UNLOAD.format("izwi-tiny-tts"))  # waits for what runs
        assert gone.json()["stage"] == "unloaded"
        assert [one.join() for one in listeners] == expected
        assert names(server) == {()}
        assert post(server, SPEECH, **(ASK | {"input": "Hello."})).status_code == 404

        assert post(server, "/v1/models/izwi-tiny-tts/load").json()["loaded"]
        assert [one.join() for one in listen(server, 6, 60)] == expected


def says(server, model):
    """What a model answers to one prompt, each time the same."""
    body = {"messages": [{"role": "user", "content": "Say something about rain."}]}
    found = {
        post(
            server, "/v1/chat/completions", model=model, temperature=0, max_tokens=24, **body
        ).json()["choices"][0]["message"]["content"]
        for _ in range(4)
    }
    assert len(found) == 1, found
    return found.pop()


@pytest.mark.slow
def test_adapters_come_and_go_on_all_api_servers_and_engines(tmp_path, monkeypatch):
    monkeypatch.setenv("IZWI_HOME", str(tmp_path / "home"))
    base = write_tiny_chat(tmp_path / "chat", UNTIED)
    shapes = {"model.layers.1.mlp.down_proj.weight": (48, 96)}
    drawn = [draw_adapter(shapes, n) for n in range(2)]
    folders = [write_adapter(tmp_path / f"adapter{n}", one) for n, one in enumerate(drawn)]
    merged = merge(base, tmp_path / "merged", drawn[0], 6 / 4)
    options = ("--model", str(base), "--model", str(merged), "--adapter", f"chat:a={folders[0]}")
    options += ("--manage-models", "--api-servers", "2", "--device", "cpu")
    with replicated(tmp_path, *options, IZWI_HOME=str(tmp_path / "home")) as server:
        assert names(server) == {("chat", "merged", "chat:a")}
        plain, first = says(server, "chat"), says(server, "chat:a")
        assert first == says(server, "merged") != plain
        assert post(server, "/v1/models/chat:b/load").status_code == 404
        add(folders[1], "b", ())
        loaded = post(server, "/v1/models/chat:b/load")
        assert loaded.status_code == 200, loaded.text
        assert names(server) == {("chat", "merged", "chat:a", "chat:b")}
        assert len(server.processes("engine")) == 2
        assert says(server, "chat:b") not in (plain, first)
        assert post(server, "/v1/models/chat/unload").status_code == 400
        assert post(server, "/v1/models/chat:a/unload").json()["stage"] == "unloaded"
        assert names(server) == {("chat", "merged", "chat:b")}
        assert says(server, "chat") == plain
