"""Adapters are models of their own to callers: listed, asked for, loaded and unloaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from izwi.checkpoints.adapter_folder import adapter_ref
from izwi.checkpoints.added import add
from izwi.checkpoints.registry import Registry
from izwi.errors import CheckpointError, ModelNotFound
from izwi.inputs.chat import ChatInput
from izwi.model.capability import Capability
from izwi.request.request import Request
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.app import create_app
from izwi_api.serve.local_services import open_services
from izwi_api.services.models.adapter_option import check_adapters, parse_adapters
from izwi_api.services.models.served import ServedModels
from tests.api.conftest import listening
from tests.models.adapter_files import draw_adapter, merge, write_adapter
from tests.models.tiny_chat import UNTIED, write_tiny_chat

SHAPES: dict[str, tuple[int, ...]] = {
    f"model.layers.{n}.self_attn.{name}_proj.weight": shape
    for n in range(3)
    for name, shape in (("q", (64, 48)), ("v", (32, 48)), ("o", (48, 64)))
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with a chat model, one adapter, and the merged model."""
    root = tmp_path_factory.mktemp("adapters")
    base = write_tiny_chat(root / "chat", UNTIED)
    drawn = [draw_adapter(SHAPES, n) for n in range(2)]
    folders = [write_adapter(root / f"adapter{n}", one) for n, one in enumerate(drawn)]
    merged = merge(base, root / "merged", drawn[0], 6 / 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IZWI_HOME", str(root / "home"))
        services = open_services([str(base), str(merged)], RuntimeOptions("cpu", "float32"))
        services.registry.load_folder("chat:poet", folders[0], str(folders[0]))
        settings = replace(services.settings, manage_models=True)
        with (
            listening(create_app(services.engine, services.registry, settings)) as port,
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            yield SimpleNamespace(client=client, folders=folders, registry=services.registry)


def answer(served: Any, model: str) -> str:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "say something long about rain"}],
        "max_tokens": 24,
        "temperature": 0,
    }
    response = served.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.json()["model"] == model
    content = response.json()["choices"][0]["message"]["content"]
    assert len(content) > 8
    return str(content)


def names(served: Any) -> list[str]:
    return [entry["id"] for entry in served.client.get("/v1/models").json()["data"]]


@pytest.mark.slow
def test_an_adapter_answers_as_its_merged_model_beside_its_base(served: Any) -> None:
    first = answer(served, "chat")
    assert answer(served, "chat:poet") == answer(served, "merged") != first
    assert answer(served, "chat") == first
    entry = served.client.get("/v1/models/chat:poet").json()
    assert (entry["root"], entry["parent"], entry["task"]) == ("chat:poet", "chat", "chat")
    assert entry["memory"] == served.client.get("/v1/models/chat").json()["memory"]
    assert "parent" not in served.client.get("/v1/models/chat").json()
    wrong = served.client.post(
        "/v1/chat/completions",
        json={"model": "chat:nobody", "messages": [{"role": "user", "content": "a"}]},
    )
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.slow
def test_an_added_adapter_is_loaded_and_unloaded_while_the_server_runs(served: Any) -> None:
    client = served.client
    assert client.post("/v1/models/chat:second/load").status_code == 404
    add(served.folders[1], "second", ())
    assert client.post("/v1/models/chat:second/load").json()["loaded"]
    assert names(served) == ["chat", "merged", "chat:poet", "chat:second"]
    first, second = answer(served, "chat:poet"), answer(served, "chat:second")
    assert first != second
    kept = client.post("/v1/models/chat/unload")
    assert kept.status_code == 400
    assert "unload chat:poet, chat:second first" in kept.json()["error"]["message"]
    assert client.post("/v1/models/chat:second/unload").json()["stage"] == "unloaded"
    assert names(served) == ["chat", "merged", "chat:poet"]
    body = {"model": "chat:second", "messages": [{"role": "user", "content": "hello"}]}
    assert client.post("/v1/chat/completions", json=body).status_code == 404
    assert answer(served, "chat:poet") == first
    assert client.post("/v1/models/merged:second/load").json()["loaded"]
    assert client.post("/v1/models/merged:second/unload").status_code == 200


@pytest.mark.slow
def test_adapters_of_no_model_or_another_one_are_refused(served: Any, tmp_path: Path) -> None:
    registry = served.registry
    with pytest.raises(ModelNotFound, match="no model 'nobody' is served"):
        registry.read(served.folders[0], "nobody:poet")
    with pytest.raises(ModelNotFound, match="'chat:poet' is an adapter itself"):
        registry.read(served.folders[0], "chat:poet:poet")
    wide = {"model.layers.0.self_attn.q_proj.weight": (96, 48)}
    folder = write_adapter(tmp_path / "wide", draw_adapter(wide, 0))
    with pytest.raises(CheckpointError, match=r"lora_B.weight' is \(96, 4\), expected \(64, 4\)"):
        registry.read(folder, "chat:wide")
    add(folder, "wide", ())
    refused = served.client.post("/v1/models/chat:wide/load")
    assert refused.status_code == 400
    assert "the checkpoint of 'chat:wide' cannot be used" in refused.json()["error"]["message"]


class KeptRequests:
    """An engine that keeps what is submitted."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def submit_all(self, requests: list[Request]) -> list[Request]:
        self.requests += requests
        return requests


def test_requests_of_an_adapter_go_to_its_model_with_it(tmp_path: Path) -> None:
    base = write_tiny_chat(tmp_path / "chat", UNTIED)
    folder = write_adapter(tmp_path / "poet", draw_adapter(SHAPES, 0))
    registry, engine = Registry(), KeptRequests()
    registry.load(str(base))
    registry.load_folder("chat:poet", folder, str(folder))
    models = ServedModels(engine, registry, {"poet": "chat:poet"})  # type: ignore[arg-type]
    for name in ("chat", "chat:poet", "poet"):
        model = models.chat(name)
        asked = ChatInput((), token_ids=(1, 2, 3), max_new_tokens=4)
        model.submit(model.frontend.prepare_chat(name, model.name, asked))
    assert [request.model for request in engine.requests] == ["chat"] * 3
    assert engine.requests[0].adapter is None
    assert engine.requests[1].adapter == engine.requests[2].adapter
    assert engine.requests[1].adapter == adapter_ref("chat:poet", folder)
    assert models.names() == ["chat", "chat:poet"]
    assert models.default(Capability.CHAT) == "chat"
    assert models.chat("chat").fingerprint != models.chat("chat:poet").fingerprint
    registry.unload("chat:poet")
    with pytest.raises(ModelNotFound):
        models.chat("chat:poet")


def test_the_option_names_a_model_and_a_folder(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", {})
    assert parse_adapters([f"org/m:a={folder}"]) == {"org/m:a": folder}
    for entry, message in (
        (f"a={folder}", "must be like"),
        ("m:a=", "must be like"),
        (f"m:a={tmp_path}", "has no adapter_config.json"),
    ):
        with pytest.raises(Exception, match=message):
            parse_adapters([entry])
    with pytest.raises(Exception, match="is given twice"):
        parse_adapters([f"m:a={folder}", f"m:a={write_adapter(tmp_path / 'b', {})}"])
    with pytest.raises(Exception, match="no model is called 'm'; they are n"):
        check_adapters({"m:a": folder}, ["n"])
