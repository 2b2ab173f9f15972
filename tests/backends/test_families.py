"""Every family gives torch's entries, and audio within float32: on MLX, on the core alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from izwi.backends.protocol import Backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.conversation import AudioContent
from izwi.inputs.images import ChatImage
from izwi.inputs.speech import AlignmentInput
from izwi.request.request import Request
from izwi_models.lfm2_audio import FAMILY as S2S
from izwi_models.qwen3_aligner import FAMILY as ALIGNER
from izwi_models.qwen3_vl import FAMILY as VL
from tests.backends.kinds import AHEAD, backend_of
from tests.models.kinds import KINDS, request_of
from tests.models.loading import load_checkpoint
from tests.models.test_lfm2_engine import turn
from tests.models.test_lfm2_mixed import LIVELY, talk
from tests.models.tiny_aligner import write_tiny_aligner
from tests.models.tiny_asr import waveform
from tests.models.tiny_lfm2_audio import write_tiny_lfm2_audio
from tests.models.tiny_vl import drawn_image, write_tiny_vl
from tests.ops.tables import composed

SIZES = ((48, 32), (32, 80))  # width, height

Outputs = dict[str, tuple[list[list[int]], np.ndarray]]


def talks(frontend: Any) -> list[Request]:
    clip = AudioContent(waveform(0.6))
    return [
        talk(frontend, "talk", turn("Who is there?"), seed=1),
        talk(frontend, "heard", turn(clip), seed=2, temperature=1.0, max_new_tokens=19),
        talk(frontend, "greedy", turn(clip, "?"), temperature=0.0),
    ]


def alignments(frontend: Any) -> list[Request]:
    said = {1.7: "and this is a test", 0.9: "a word"}
    return [
        frontend.prepare_alignment(str(n), "s2s", AlignmentInput(waveform(length), text, "English"))
        for n, (length, text) in enumerate(said.items())
    ]


def views(frontend: Any) -> list[Request]:
    """Two questions about images, and one without."""
    images = [ChatImage(3 * n, pixels=drawn_image(*size, n)) for n, size in enumerate(SIZES)]
    asks = [
        ChatInput((ChatMessage(Role.USER, "Is it?", images=shown),), temperature=0.0)
        for shown in (tuple(images), (), tuple(images[1:]))
    ]
    requests = [frontend.prepare_chat(str(n), "m", ask) for n, ask in enumerate(asks)]
    return [replace(request, max_entries=3 + 2 * n) for n, request in enumerate(requests)]


def asked(kind: str) -> Callable[[Any], list[Request]]:
    """Three requests of a few entries."""

    def short(frontend: Any) -> list[Request]:
        requests = [request_of(KINDS[kind][0], frontend, i) for i in range(3)]
        return [replace(request, max_entries=3 + 2 * n) for n, request in enumerate(requests)]

    return short


def lively(folder: Path) -> Path:
    return write_tiny_lfm2_audio(folder, loudness=LIVELY, blocks=(2, 3))


CASES: dict[str, tuple[Any, Callable[[Path], Path], Callable[[Any], list[Request]]]] = {
    kind: (*KINDS[kind], asked(kind)) for kind in ("tts", "tts, cloning", "asr")
} | {
    "aligner": (ALIGNER, write_tiny_aligner, alignments),
    "speech to speech": (S2S, lively, talks),
    "vision": (VL, write_tiny_vl, views),
}


class OverTheCore:
    """Loads models that compute with compositions of a backend's core."""

    def __init__(self, backend: Backend):
        self.ops, self.load_weights = composed(backend.ops), backend.load_weights


def outputs(kind: str, folder: Path, backend: str, at_once: int) -> Outputs:
    """What all requests give, so many at once."""
    family, _, requests_of = CASES[kind]
    made = backend_of("torch" if backend == "core" else backend)
    loading = OverTheCore(made) if backend == "core" else made
    frontend, model = load_checkpoint(family, folder, loading)
    engine = Engine({"m": model, "s2s": model}, made, EngineConfig(kv_bytes=1 << 24))
    entries: defaultdict[str, list[list[int]]] = defaultdict(list)
    pcm: defaultdict[str, list[np.ndarray]] = defaultdict(lambda: [np.zeros(0, np.float32)])
    waiting = requests_of(frontend)
    while waiting or engine.has_work:
        while (
            waiting and sum(load["running"] + load["waiting"] for load in _loads(engine)) < at_once
        ):
            engine.submit(waiting.pop(0))
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            entries[chunk.request_id] += chunk.entries.tolist()
            if chunk.pcm is not None:
                pcm[chunk.request_id].append(chunk.pcm)
    return {name: (entries[name], np.concatenate(pcm[name])) for name in entries}


def _loads(engine: Engine) -> list[Any]:
    return list(engine.load.values())


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow)
        if kind in ("tts, cloning", "speech to speech")
        else kind
        for kind in CASES
    ],
)
def test_every_family_gives_what_it_gives_on_torch(kind: str, tmp_path: Path) -> None:
    folder = CASES[kind][1](tmp_path / "tiny")
    expected = outputs(kind, folder, "torch", at_once=3)
    assert sum(len(entries) for entries, _ in expected.values()) > 5
    for backend, at_once in (("mlx", 3), ("mlx", 1), (AHEAD, 3), ("core", 3)):
        found = outputs(kind, folder, backend, at_once)
        assert found.keys() == expected.keys()
        for name, (entries, samples) in expected.items():
            assert found[name][0] == entries
            assert found[name][1].shape == samples.shape
            np.testing.assert_allclose(found[name][1], samples, atol=1e-5)
    speaks = kind.startswith("tts") or kind == "speech to speech"
    assert speaks == any(np.abs(samples).max(initial=0) > 1e-3 for _, samples in expected.values())
