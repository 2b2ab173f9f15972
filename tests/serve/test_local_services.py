"""An engine in this process: its models are found once."""

from __future__ import annotations

import pytest

from izwi.checkpoints import registry
from izwi.config import EngineConfig
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.local_services import load_models

SOURCES = ["izwi-tiny-tts", "ear=izwi-tiny-asr"]


def test_each_source_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    find, asked = registry.find, list[str]()

    def counted(source: str, *, offline: bool = False) -> object:
        asked.append(source)
        return find(source, offline=offline)

    monkeypatch.setattr(registry, "find", counted)
    served, _ = load_models(SOURCES, RuntimeOptions("cpu", offline=True), EngineConfig())
    assert asked == ["izwi-tiny-tts", "izwi-tiny-asr"]
    assert served.names() == ["izwi-tiny-tts", "ear"] == list(served.models)
    assert served.locate("ear").name == "izwi-tiny-asr"  # it can be loaded again
