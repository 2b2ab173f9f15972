"""Compare frame time with other engines of the same model: one GPU, one run, one stream.

Random weights at a published size, no codec, runs of equal length. Each peer is measured with its
own package; if it is not installed, its row has the reason instead of times.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.fixed_length import fix_frames
from benchmarks.measure import TEXTS, write_result
from benchmarks.random_checkpoint import RandomBackend, write_folder
from benchmarks.tts.frame_time import graph_rows
from izwi.backends.torch.backend import TorchBackend, torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput
from izwi.model.frontend import SpeechFrontend
from tests.models.tiny_tts import write_tiny_tts

SIZES = ("tts-1.7b", "tts-0.6b", "tiny")
FASTER, REFERENCE = "faster-qwen3-tts", "qwen-tts-hf"
_FRAME_S = 0.08
_RUNS = 3  # measured runs, after one that warms up
_KV_BYTES = 1 << 30  # the other engines need room on the same device
_MAX_POSITIONS = 2048  # faster-qwen3-tts's own default
_MROPE = {
    128: [24, 20, 20]
}  # published; izwi's configurations may have other values, which have no effect


@dataclass(frozen=True, slots=True)
class Case:
    """Input of every engine.

    Attributes:
        config: config.json of the checkpoint.
        frames: Frames of every run.
        prompts: Prompts of the runs, in izwi's layout: speaker, text ids, number of positions.
    """

    config: dict[str, Any]
    device: torch.device
    dtype: torch.dtype
    frames: int
    prompts: list[tuple[str, list[int], int]]


def row(peer: str, case: Case, first_ms: float, frame_ms: float, **more: Any) -> dict[str, Any]:
    """A row of the table: time until the first frame, and per frame after that.

    Until the first frame, the peers' loops run the talker once more than izwi's.
    """
    seconds = (first_ms + (case.frames - 1) * frame_ms) / 1e3
    return {
        "peer": peer,
        "frame_ms": round(frame_ms, 3),
        "first_frame_ms": round(first_ms, 3),
        "rtf": round(seconds / (case.frames * _FRAME_S), 4),
        **more,
    }


def izwi_row(size: str, options: argparse.Namespace) -> tuple[dict[str, Any], Case]:
    """Run the engine's own loop; its chunk sizes put all audio after the last frame."""
    backend = RandomBackend(torch_backend(options.device, options.dtype).ops)
    registry = Registry(backend)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / size
        (write_tiny_tts(folder) if size == "tiny" else write_folder(size, folder))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        registry.load(str(folder))
    model, ops = registry.speech(size), backend.ops
    fix_frames(model, options.frames)
    settings = EngineConfig(max_running=1, kv_bytes=_KV_BYTES, chunk_ramp=(options.frames,))
    engine = Engine(registry.models, TorchBackend(ops), settings)
    case = Case(config, ops.device, ops.dtype, options.frames, [])
    firsts, frames = [], []
    for number in range(
        _RUNS + 1
    ):  # a different speaker each, so that no prompt hits the prefix cache
        first_ms, frame_ms = _izwi_run(engine, model, size, number, case)
        firsts.append(first_ms)
        frames.append(frame_ms)
    more = {}
    if ops.captures:
        more["captured_frame_ms"] = graph_rows(engine, [1])[0]["frame_ms"]
    first_ms, frame_ms = statistics.median(firsts[1:]), statistics.median(frames[1:])
    return row("izwi", case, first_ms, frame_ms, **more), case


def _izwi_run(
    engine: Engine, model: SpeechFrontend, name: str, number: int, case: Case
) -> tuple[float, float]:
    """Return milliseconds until the first frame, and per step between it and the last."""
    speaker = model.speakers[number % len(model.speakers)]
    ask = SpeechInput(text=TEXTS[number % len(TEXTS)], voice=speaker, seed=number)
    request = model.prepare_speech(f"peers-{number}", name, ask)
    prompt: Any = request.prompt
    assert not len(prompt.text_track), "the peers are asked with all text before the first frame"
    count = prompt.num_text_ids
    text = [*prompt.text[:3], *prompt.text[-count - 2 : -2]]
    case.prompts.append((speaker, [int(token) for token in text], prompt.num_positions))
    engine.submit(request)
    ends = [time.perf_counter()]
    while engine.has_work:
        for chunk in engine.step():
            if chunk.error is not None:
                raise chunk.error
        ends.append(time.perf_counter())
    # the step of the last frame decodes the audio
    between = ends[case.frames - 1] - ends[1]
    return (ends[1] - ends[0]) * 1e3, between * 1e3 / (case.frames - 2)


def timed_row(peer: str, case: Case, run: Callable[[int, int], int]) -> dict[str, Any]:
    """Time runs of one frame and of all frames; the difference gives the time of a frame.

    `run` generates a number of frames for the prompt with an index, and returns their number.
    """
    times: dict[int, list[float]] = {1: [], case.frames: []}
    for frames, seconds in times.items():
        for number in range(_RUNS + 1):
            _synchronize(case.device)
            began = time.perf_counter()
            made = run(number, frames)
            _synchronize(case.device)
            seconds.append(time.perf_counter() - began)
            assert made == frames, f"{peer} made {made} frames of {frames}"
    first, whole = (statistics.median(seconds[1:]) for seconds in times.values())
    return row(peer, case, first * 1e3, (whole - first) * 1e3 / (case.frames - 1))


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reference_model(case: Case) -> Any:
    """Load the reference package's model on the device, with random weights."""
    models = import_module("qwen_tts.core.models.modeling_qwen3_tts")
    settings = import_module("qwen_tts.core.models.configuration_qwen3_tts")
    talker = dict(case.config["talker_config"])
    sections = _MROPE.get(talker["head_dim"])
    if sections:
        talker["rope_scaling"] = {**talker["rope_scaling"], "mrope_section": sections}
    config = settings.Qwen3TTSConfig(**{**case.config, "talker_config": talker})
    usual = torch.get_default_dtype()
    torch.set_default_dtype(case.dtype)
    try:
        with torch.device(case.device):
            model = models.Qwen3TTSForConditionalGeneration._from_config(
                config, attn_implementation="sdpa", dtype=case.dtype
            )
    finally:
        torch.set_default_dtype(usual)
    return model.eval()


def _ids(case: Case, number: int) -> tuple[str, torch.Tensor]:
    """Return the speaker and the reference's input: role, text, and five ids that it cuts off."""
    speaker, ids, _ = case.prompts[number]
    return speaker, torch.tensor([[*ids, *[0] * 5]], device=case.device)


def faster_row(case: Case, model: Any) -> dict[str, Any]:
    """Run faster-qwen3-tts with its own prompt, graphs and loop, set up by `from_pretrained`."""
    package = import_module("faster_qwen3_tts")
    generate = import_module("faster_qwen3_tts.generate").fast_generate
    predictor_graph = import_module("faster_qwen3_tts.predictor_graph").PredictorGraph
    talker_graph = import_module("faster_qwen3_tts.talker_graph").TalkerGraph
    if case.device.type != "cuda":
        return {"peer": FASTER, "left_out": "it runs on CUDA alone"}
    talker, config = model.talker, model.config.talker_config
    place = {"device": str(case.device), "dtype": case.dtype}
    predicts = predictor_graph(
        talker.code_predictor, talker.code_predictor.model.config, config.hidden_size, **place
    )
    talks = talker_graph(talker.model, config, max_seq_len=_MAX_POSITIONS, **place)
    wrapped = SimpleNamespace(model=model)
    engine = package.FasterQwen3TTS(wrapped, predicts, talks, max_seq_len=_MAX_POSITIONS, **place)
    engine.warmup()

    @torch.inference_mode()
    def run(number: int, frames: int) -> int:
        speaker, ids = _ids(case, number)
        embeds, mask, trailing, pad = engine._build_talker_inputs_local(
            m=model,
            input_ids=[ids],
            ref_ids=[None],
            voice_clone_prompt=None,
            languages=["Auto"],
            speakers=[speaker],
            non_streaming_mode=True,
        )
        assert embeds.shape[1] == case.prompts[number][2], "not the prompt that izwi was given"
        talker.rope_deltas = None
        lengths = {"max_new_tokens": frames, "min_new_tokens": frames + 1}  # bans the end token
        made, _ = generate(talker, embeds, mask, trailing, pad, config, predicts, talks, **lengths)
        return len(made)

    return timed_row(FASTER, case, run)


def reference_row(case: Case, model: Any) -> dict[str, Any]:
    """Run the reference package, which ends a run of n frames with the token after them."""
    # an end token outside the vocabulary cannot be drawn
    model.config.talker_config.codec_eos_token_id = model.config.talker_config.vocab_size

    def run(number: int, frames: int) -> int:
        speaker, ids = _ids(case, number)
        codes, _ = model.generate(
            input_ids=[ids],
            languages=["auto"],
            speakers=[speaker],
            non_streaming_mode=True,
            max_new_tokens=frames + 1,
        )
        return len(codes[0])

    return timed_row(REFERENCE, case, run)


def peer_rows(case: Case) -> list[dict[str, Any]]:
    """Return a row for each peer: its times, or the reason why it was not measured."""
    try:
        model = reference_model(case)
    except ImportError as error:  # both are built on the reference's modules
        return [
            {"peer": peer, "left_out": f"not installed: {error}"} for peer in (FASTER, REFERENCE)
        ]
    rows = []
    for peer, measure in ((FASTER, faster_row), (REFERENCE, reference_row)):
        try:
            rows.append(measure(case, model))
        except ImportError as error:
            rows.append({"peer": peer, "left_out": f"not installed: {error}"})
    return rows


def add_ratios(rows: list[dict[str, Any]]) -> None:
    """Add to each time its ratio to faster-qwen3-tts."""
    theirs = next((row.get("frame_ms") for row in rows if row["peer"] == FASTER), None)
    for each in rows:
        if theirs is not None and "frame_ms" in each:
            each["ratio_to_faster_qwen3_tts"] = round(theirs / each["frame_ms"], 2)


def _versions() -> dict[str, str]:
    found = {}
    for package in (FASTER, REFERENCE, "transformers", "triton"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--size", choices=SIZES, default="tts-1.7b" if on_gpu else "tiny")
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--frames", type=int, default=52, help="frames of an utterance, at least 3")
    options = parser.parse_args()
    ours, case = izwi_row(options.size, options)
    gc.collect()
    if case.device.type == "cuda":
        torch.cuda.empty_cache()
    rows = [ours, *peer_rows(case)]
    add_ratios(rows)
    write_result(
        "peers" if options.size == "tts-1.7b" else f"peers_{options.size}",
        rows,
        size=options.size,
        frames=options.frames,
        dtype=str(case.dtype),
        prompt_positions=[positions for _, _, positions in case.prompts],
        peers=_versions(),
    )


if __name__ == "__main__":
    main()
