"""A speech request passes few modules on its way to the device, and they do not become more."""

from __future__ import annotations

from benchmarks.serving.request_path import follow, libraries_as_one

# What a reader of one request follows. A new module joins one that is there, if both are one.
MOST_FORMS, MOST_MODULES = 10, 25


def test_speech_request_passes_no_more_forms_and_modules() -> None:
    path = follow()
    assert len(path.forms) <= MOST_FORMS, path.forms
    assert len(libraries_as_one(path.takers)) <= MOST_MODULES, path.takers
    assert "izwi_models.qwen3_tts.model" in path.takers  # it was followed to its end
