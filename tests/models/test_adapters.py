"""Rows with adapters answer as merged weights do, beside rows without, which keep their bits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from izwi.backends.protocol import Backend
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.adapter_folder import adapter_ref
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.engine.step_thread import SteppingThread
from izwi.errors import EngineStopped, InvalidRequest
from izwi.inputs.chat import ChatInput
from izwi.inputs.speech import SpeechInput
from izwi.request.adapter import AdapterRef
from izwi.request.request import Chunk, Reason, Request
from izwi.runner.adapters import Adapters
from izwi_models import FAMILIES
from izwi_models.qwen3_chat import FAMILY
from izwi_models.qwen3_chat.model import Qwen3Chat
from tests.backends.kinds import AHEAD, backend_of
from tests.models.adapter_files import draw_adapter, merge, write_adapter
from tests.models.tiny_chat import UNTIED, write_tiny_chat
from tests.models.tiny_tts import write_tiny_tts

PROMPTS = [tuple(np.random.default_rng(n).integers(0, 256, 21 + 3 * n).tolist()) for n in range(2)]
# k_proj and up_proj stay as they are, beside parts of the same products that do not
MODULES = ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj")
Answer = tuple[list[int], list[float]]


class Files:
    """A checkpoint, two adapters of it, and each merged."""

    def __init__(self, folder: Path):
        self.base = write_tiny_chat(folder / "base", UNTIED)
        model: Any = FAMILY.load_model(self.base, torch_backend("cpu", "float32"))
        self.shapes = model.adapted.adaptable
        self.refs: dict[str, AdapterRef | None] = {"": None}
        self.folders = {"": self.base}
        # the first has all modules of two layers, the other one module, with its own scale
        every = {n: s for n, s in self.shapes.items() if n.split(".")[-2] in MODULES}
        kinds: dict[str, tuple[Any, int, dict[str, Any], float]] = {
            "a": (every, 4, {}, 6 / 4),
            "b": (
                {n: s for n, s in self.shapes.items() if "up_proj" in n or "1.self_attn.k" in n},
                9,
                {"r": 9, "use_rslora": True},
                6 / 3,
            ),
        }
        for seed, (name, (shapes, rank, config, scale)) in enumerate(kinds.items()):
            tensors = draw_adapter(shapes, seed, rank)
            written = write_adapter(folder / name, tensors, **config)
            self.refs[name] = adapter_ref(f"m:{name}", written)
            self.folders[name] = merge(self.base, folder / f"{name}-merged", tensors, scale)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Drawn once."""
    return Files(tmp_path_factory.mktemp("adapters"))


def asked(files: Files, prompt: int, adapter: str, name: str = "") -> Request:
    """A request for a greedy answer."""
    frontend: Any = FAMILY.load_frontend(files.base)
    ask = {"max_new_tokens": 8, "temperature": 0.0, "logprobs": True}
    request = frontend.prepare_chat(
        name or f"{prompt}{adapter}", "m", ChatInput((), token_ids=PROMPTS[prompt], **ask)
    )
    return replace(request, adapter=files.refs[adapter], stop_ids=())


def engine_of(folder: Path, backend: Backend, kv_bytes: int = 1 << 20) -> Engine:
    """An engine with the checkpoint."""
    model = FAMILY.load_model(folder, backend)
    return Engine({"m": model}, backend, EngineConfig(page_size=4, kv_bytes=kv_bytes))


def run(engine: Engine, requests: list[Request]) -> list[Answer]:
    """Ids and log probabilities of each answer."""
    found: dict[str, Answer] = {one.request_id: ([], []) for one in requests}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            ids, logprobs = found[chunk.request_id]
            ids += chunk.entries.ravel().tolist()
            logprobs += np.asarray(chunk.logprobs).ravel().tolist()
    return list(found.values())


def check_equal(found: Answer, expected: Answer) -> None:
    assert found[0] == expected[0]
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "backend", ["torch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlx", AHEAD))]
)
def test_a_mixed_batch_answers_as_merged_weights_do(backend: str, files: Files) -> None:
    made = backend_of(backend)
    engine = engine_of(files.base, made)
    cases = [(prompt, name) for prompt in range(len(PROMPTS)) for name in files.refs]
    together = run(engine, [asked(files, *case) for case in cases])
    assert len({tuple(ids) for ids, _ in together}) == len(cases)
    for name, folder in files.folders.items():
        merged = engine_of(folder, made)
        for case, found in zip(cases, together, strict=True):
            if case[1] == name:
                check_equal(found, run(merged, [asked(files, case[0], "")])[0])
                if backend == "torch" and case[0]:  # on a CPU bits do not depend on the batch
                    alone = run(engine_of(files.base, made), [asked(files, *case)])
                    assert alone == [found]


def test_a_prefix_of_one_adapter_serves_no_other(files: Files) -> None:
    backend = torch_backend("cpu", "float32")
    engine = engine_of(files.base, backend)
    order = ["", "a", "b", "", "a", "b"]
    hits, found = [], []
    for n, name in enumerate(order):
        before = engine.load["m"]["prefix_positions_hit"]
        found += run(engine, [asked(files, 0, name, str(n))])
        hits.append(engine.load["m"]["prefix_positions_hit"] - before)
    assert hits[:3] == [0, 0, 0]
    assert min(hits[3:]) >= 20  # all whole pages of its own earlier prompt
    assert found[:3] == found[3:]
    for name, answer in zip(order[:3], found, strict=False):
        check_equal(answer, run(engine_of(files.folders[name], backend), [asked(files, 0, "")])[0])


def test_rows_that_lose_their_pages_resume_with_their_adapter(files: Files) -> None:
    backend = torch_backend("cpu", "float32")
    cases = [(prompt, name) for prompt in range(len(PROMPTS)) for name in files.refs]
    requests = [replace(asked(files, *case), max_entries=14) for case in cases]
    expected = run(engine_of(files.base, backend), requests)
    page_bytes = int(engine_of(files.base, backend).load["m"]["page_bytes"])
    small = engine_of(files.base, backend, 24 * page_bytes)
    assert run(small, requests) == expected
    assert small.load["m"]["preempted"] > 0


def test_an_adapter_stays_until_its_requests_end(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("izwi.runner.adapters._MOST_KEPT", 1)
    backend = torch_backend("cpu", "float32")
    engine = engine_of(files.base, backend)
    names = ["a", "b"]
    found = run(engine, [asked(files, 0, name) for name in names])
    kept = engine.runners[0].adapters
    assert list(kept._kept) == [files.refs["b"].digest]  # type: ignore[union-attr]
    for name, answer in zip(names, found, strict=True):
        assert run(engine_of(files.base, backend), [asked(files, 0, name)]) == [answer]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "mlx", AHEAD])
def test_a_talker_speaks_as_merged_weights_do(backend: str, tmp_path: Path) -> None:
    family = next(one for one in FAMILIES if one.model_type == "qwen3_tts")
    base = write_tiny_tts(tmp_path / "base")
    made = backend_of(backend)
    frontend: Any = family.load_frontend(base)
    ask = SpeechInput("Good day to you.", voice="ryan", temperature=0.0, max_new_tokens=12)
    plain: Request = frontend.prepare_speech("plain", "m", ask)
    model: Any = family.load_model(base, made)
    shapes = dict(sorted(model.adapted.adaptable.items())[::2])
    tensors = draw_adapter(shapes, 5)
    ref = adapter_ref("m:a", write_adapter(tmp_path / "a", tensors))
    adapted = replace(plain, request_id="adapted", adapter=ref)
    engine = Engine({"m": model}, made, EngineConfig(page_size=4, kv_bytes=1 << 22))
    found = heard(engine, [plain, adapted])
    merged = merge(base, tmp_path / "merged", tensors, 6 / 4)
    for folder, name in ((base, "plain"), (merged, "adapted")):
        twin = family.load_model(folder, made)
        other = Engine({"m": twin}, made, EngineConfig(page_size=4, kv_bytes=1 << 22))
        frames, samples = heard(other, [plain])["plain"]
        assert found[name][0] == frames
        np.testing.assert_allclose(found[name][1], samples, atol=1e-4)
    assert found["plain"][0] != found["adapted"][0]


def heard(engine: Engine, requests: list[Request]) -> dict[str, tuple[list[Any], list[float]]]:
    """Frames and samples of each request."""
    found: dict[str, tuple[list[Any], list[float]]] = {r.request_id: ([], []) for r in requests}
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            frames, samples = found[chunk.request_id]
            frames += chunk.entries.tolist()
            samples += [] if chunk.pcm is None else chunk.pcm.tolist()
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_the_reference_package_computes_the_same(files: Files, tmp_path: Path) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    kwargs = {"dtype": torch.float32, "attn_implementation": "eager"}
    base = transformers.AutoModelForCausalLM.from_pretrained(files.base, **kwargs)
    for rslora in (False, True):
        config = peft.LoraConfig(
            r=5,
            lora_alpha=7,
            use_rslora=rslora,
            target_modules=["q_proj", "up_proj", "down_proj"],
            init_lora_weights=False,
        )
        torch.manual_seed(3)
        theirs = peft.get_peft_model(base, config).eval()
        folder = tmp_path / f"written{rslora}"
        theirs.save_pretrained(folder)
        request = replace(asked(files, 1, ""), adapter=adapter_ref("m:theirs", folder))
        engine = engine_of(files.base, torch_backend("cpu", "float32"))
        ids, logprobs = run(engine, [request])[0]
        with torch.inference_mode():
            whole = torch.tensor([[*PROMPTS[1], *ids]])
            logits = theirs(input_ids=whole).logits[0, len(PROMPTS[1]) - 1 : -1].log_softmax(-1)
        assert logits.argmax(-1).tolist() == ids
        np.testing.assert_allclose(logits.amax(-1).numpy(), logprobs, atol=1e-4)
        base = theirs.unload()


def test_files_that_changed_are_refused(files: Files, tmp_path: Path) -> None:
    engine = engine_of(files.base, torch_backend("cpu", "float32"))
    written = write_adapter(tmp_path / "c", draw_adapter(files.shapes, 3))
    request = replace(asked(files, 0, ""), adapter=adapter_ref("m:c", written))
    write_adapter(written, draw_adapter(files.shapes, 4))
    with pytest.raises(InvalidRequest, match="adapter 'm:c' cannot be used"):
        engine.submit(request)
    assert not engine.has_work


def test_several_ranks_refuse_adapters(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = torch_backend("cpu", "float32")
    engine = engine_of(files.base, backend)
    monkeypatch.setattr(backend.ops, "ranks", SimpleNamespace(count=2))
    with pytest.raises(InvalidRequest, match="not supported with --tensor-parallel"):
        engine.submit(asked(files, 0, "a"))


class Ended:
    """Chunks by request, and who has ended."""

    def __init__(self) -> None:
        self.entries: dict[str, list[int]] = {}
        self.reasons: Queue[tuple[str, Reason | None, BaseException | None]] = Queue()

    def deliver(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self.entries.setdefault(chunk.request_id, []).extend(chunk.entries.ravel().tolist())
            if chunk.reason is not None:
                self.reasons.put((chunk.request_id, chunk.reason, chunk.error))

    def stepped(self) -> None: ...

    def ended(self, broken: BaseException | None) -> None: ...

    def next(self) -> tuple[str, Reason | None, BaseException | None]:
        return self.reasons.get(timeout=60)


@pytest.fixture
def read_later(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Files of adapters are read once this is set."""
    may_read, matrices = threading.Event(), Adapters._matrices

    def late(self: Adapters, ref: AdapterRef) -> Any:
        assert threading.current_thread().name.startswith("izwi-adapters")
        assert may_read.wait(60)
        return matrices(self, ref)

    monkeypatch.setattr(Adapters, "_matrices", late)
    yield may_read
    may_read.set()


def test_streams_go_on_while_an_adapter_is_read(files: Files, read_later: threading.Event) -> None:
    backend, sink = torch_backend("cpu", "float32"), Ended()
    thread = SteppingThread(engine_of(files.base, backend), sink)
    thread.start()
    try:
        thread.submit([asked(files, 0, "a", "adapted"), asked(files, 1, "a", "other")])
        thread.submit([asked(files, 0, "b", "aborted")])
        thread.pause("other")  # what is asked of requests waits for them, in order
        thread.abort("aborted")
        thread.submit([asked(files, 0, "", "plain")])
        assert sink.next()[:2] == ("plain", Reason.LENGTH)
        assert list(sink.entries) == ["plain"]
        read_later.set()
        ended = dict(sink.next()[:2] for _ in range(2))
        assert ended == {"adapted": Reason.LENGTH, "aborted": Reason.ABORTED}
        assert not sink.entries["aborted"]
        thread.resume("other")
        assert sink.next()[:2] == ("other", Reason.LENGTH)
    finally:
        thread.stop()
    engine = engine_of(files.folders["a"], backend)
    for prompt, name in enumerate(("adapted", "other")):
        assert sink.entries[name] == run(engine, [asked(files, prompt, "")])[0][0]


def test_a_stopped_engine_ends_requests_whose_adapter_is_read(
    files: Files, read_later: threading.Event
) -> None:
    sink = Ended()
    thread = SteppingThread(engine_of(files.base, torch_backend("cpu", "float32")), sink)
    thread.start()
    thread.submit([asked(files, 0, "a", "adapted")])
    thread.stop()
    name, _, error = sink.next()
    assert (name, type(error)) == ("adapted", EngineStopped)
    read_later.set()


def test_broken_files_fail_their_request_alone(files: Files, tmp_path: Path) -> None:
    written = write_adapter(tmp_path / "c", draw_adapter(files.shapes, 3))
    broken = replace(asked(files, 0, "", "broken"), adapter=adapter_ref("m:c", written))
    (written / "adapter_model.safetensors").unlink()
    sink = Ended()
    thread = SteppingThread(engine_of(files.base, torch_backend("cpu", "float32")), sink)
    thread.start()
    try:
        thread.submit([broken])
        name, _, error = sink.next()
        assert (name, type(error)) == ("broken", InvalidRequest)
        thread.submit([asked(files, 0, "", "plain")])
        assert sink.next()[:2] == ("plain", Reason.LENGTH)
    finally:
        thread.stop()


def test_steps_without_adapters_run_as_ever(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    run_plain = Qwen3Chat.run

    def counted(self: Any, x: Any, context: Any) -> Any:
        ran.append(1)
        return run_plain(self, x, context)

    monkeypatch.setattr(Qwen3Chat, "run", counted)
    engine = engine_of(files.base, torch_backend("cpu", "float32"))
    run(engine, [asked(files, 0, "a")])
    assert not ran
    run(engine, [asked(files, 0, "")])
    assert len(ran) >= 8
