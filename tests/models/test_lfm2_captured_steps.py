"""LFM2-Audio's captured steps give what plain ones give, on both tracks and in both modes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from izwi.backends.torch.backend import TorchBackend
from izwi.backends.torch.captured.decode_graphs import DecodeGraphs
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.conversation import AudioContent
from izwi.inputs.speech import SpeechInput
from izwi.request.request import Request
from izwi_models.lfm2_audio import FAMILY
from tests.backends.torch.eager import EagerOps, drawn_by_torch
from tests.models.loading import load_checkpoint
from tests.models.test_lfm2_engine import Given, run, talk, turn
from tests.models.tiny_asr import waveform
from tests.models.tiny_lfm2_audio import CALM, LOUD, write_tiny_lfm2_audio

pytest.importorskip("triton")

CONFIG = EngineConfig(
    max_running=4, kv_bytes=1 << 22, page_size=8, max_step_tokens=24, chunk_ramp=(1, 2)
)


@pytest.fixture(scope="module", params=[LOUD, CALM], ids=["loud", "calm"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("s2s")
    return write_tiny_lfm2_audio(where, loudness=request.param)


def asked(frontend: Any) -> list[Request]:
    """Requests of both modes, greedy and sampled, with and without audio, of many lengths."""
    said = [
        talk(frontend, "greedy", turn("How are you?"), max_new_tokens=40, temperature=0.0),
        talk(frontend, "drawn", turn("Tell me more."), max_new_tokens=31, temperature=0.8, seed=3),
        talk(frontend, "heard", turn(AudioContent(waveform(0.7))), max_new_tokens=23, seed=4),
        talk(frontend, "wide", turn("x"), max_new_tokens=30, audio_top_k=100, seed=5),
        talk(frontend, "one", turn("y"), max_new_tokens=1),
        talk(frontend, "text", turn("z"), max_new_tokens=30, speaks=False),
    ]
    ask = SpeechInput("Say this aloud.", max_new_tokens=34, seed=7)
    return [*said, frontend.prepare_speech("speech", "s2s", ask)]


CALM_AT_NIGHT = pytest.mark.parametrize(
    "folder",
    [LOUD, pytest.param(CALM, marks=pytest.mark.slow)],
    indirect=True,
    scope="module",
    ids=["loud", "calm"],
)


def engine_of(folder: Path, config: EngineConfig) -> tuple[Engine, Any]:
    backend = TorchBackend(EagerOps())
    frontend, model = load_checkpoint(FAMILY, folder, backend)
    return Engine({"s2s": model}, backend, config), frontend


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[str, Given]:
    engine, frontend = engine_of(folder, replace(CONFIG, graphs=False))
    return run(engine, asked(frontend))


def same(found: dict[str, Given], expected: dict[str, Given]) -> None:
    assert found.keys() == expected.keys()
    for name, given in expected.items():
        assert found[name].entries == given.entries, name
        assert found[name].reason == given.reason
        np.testing.assert_allclose(found[name].audio, given.audio, rtol=0, atol=1e-5)


@CALM_AT_NIGHT
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_captured_steps_equal_plain_steps(folder: Path, plain: dict[str, Given], seed: int) -> None:
    """Whenever requests come: rows of both tracks, prompts in chunks among decodes, one ahead."""
    chance = random.Random(seed)
    with drawn_by_torch():
        engine, frontend = engine_of(folder, CONFIG)
        requests = asked(frontend)
        chance.shuffle(requests)
        found = run(engine, requests, tuple(chance.choices([0, 1, 5], k=len(requests))))
    graphs = engine._workers["s2s"].runner._graphs
    assert graphs is not None
    assert isinstance(graphs.decodes, DecodeGraphs)
    same(found, plain)


@CALM_AT_NIGHT
@pytest.mark.slow
def test_plain_work_runs_alongside_captured_steps(folder: Path) -> None:
    """A penalty is drawn without a graph, in steps of its own kind; nothing else changes."""
    found: list[dict[str, Given]] = []
    for graphs in (False, True):
        with drawn_by_torch():
            engine, frontend = engine_of(folder, replace(CONFIG, graphs=graphs))
            requests = asked(frontend)[:3]
            odd = requests[1]
            sampling = type(odd.sampling)(0.8, 0, 1.0, 1.5)
            requests[1] = type(odd)(
                **{name: getattr(odd, name) for name in odd.__struct_fields__}
                | {"sampling": sampling}
            )
            found.append(run(engine, requests, (0, 6, 6)))
    same(found[1], found[0])


@CALM_AT_NIGHT
def test_a_pause_and_an_eviction_are_not_in_an_answer(
    folder: Path, plain: dict[str, Given]
) -> None:
    with drawn_by_torch():
        engine, frontend = engine_of(folder, replace(CONFIG, max_running=1))
        given = Given()
        requests = {request.request_id: request for request in asked(frontend)}
        engine.submit(requests["drawn"])
        steps = 0
        while engine.has_work:
            steps += 1
            if steps == 15:
                engine.pause("drawn")
                engine.submit(requests["speech"])
            if steps == 45:
                engine.resume("drawn")
            for chunk in engine.step():
                if chunk.request_id == "drawn":
                    given.add_chunk(chunk)
            assert steps < 5000
    same({"drawn": given}, {"drawn": plain["drawn"]})


@CALM_AT_NIGHT
def test_warm_up_captures_every_graph(folder: Path) -> None:
    """Every graph that a step may ask for is among those of `warm_up`."""
    with drawn_by_torch():
        engine, frontend = engine_of(folder, CONFIG)
        graphs = engine._workers["s2s"].runner._graphs
        assert graphs is not None
        decodes = graphs.decodes
        assert isinstance(decodes, DecodeGraphs)
        decodes.warm_up()
        captured: list[str] = []
        capture = decodes._capturer.capture

        def noted(work: Any) -> Any:
            captured.append(work.__qualname__)
            return capture(work)

        decodes._capturer.capture = noted  # type: ignore[method-assign]
        run(engine, asked(frontend), (1, 4, 0, 3))
    assert not [name for name in captured if name.startswith("DecodeGraphs")]


@CALM_AT_NIGHT
@pytest.mark.slow
def test_state_outside_of_pages_is_not_read(folder: Path, plain: dict[str, Given]) -> None:
    """Memory that was not written is NaN, and so would be any draw from it."""
    with drawn_by_torch():
        engine, frontend = engine_of(folder, CONFIG)
        trailers = engine._workers["s2s"].runner._kv.trailers
        assert trailers is not None
        trailers.plane[:, :-1] = torch.nan
        found = run(engine, asked(frontend))
    same(found, plain)
