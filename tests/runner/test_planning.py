"""The needs of checkpoints are known before they are loaded, and too large ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.serving.device_memory import CASES, folder_of_case
from izwi.backends.memory_plan import DeviceMemory, MemoryPlan
from izwi.backends.torch.backend import TorchBackend, torch_backend
from izwi.checkpoints.registry import embedded, family_of
from izwi.config import EngineConfig
from izwi.errors import DoesNotFit
from izwi.ops.ranks import ALONE
from izwi.runner.planning import estimated_graphs, plan_folders, prepare_device

GIB = 1 << 30
CONTEXT_GIB = 0.6  # what CUDA takes of a card


def card(monkeypatch: pytest.MonkeyPatch, gib: float) -> TorchBackend:
    """A backend that believes it has a card of this size."""
    backend = torch_backend("cpu", "bfloat16")
    free = int((gib - CONTEXT_GIB) * GIB)
    monkeypatch.setattr(backend, "memory", lambda: DeviceMemory(int(gib * GIB), free))
    return backend


@pytest.mark.parametrize(("gib", "names", "weights"), CASES)
def test_published_sizes_fit_the_cards_that_the_table_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gib: int, names: tuple[str, ...], weights: str
) -> None:
    folders = {name: folder_of_case(name, tmp_path) for name in names}
    plan = plan_folders(folders, card(monkeypatch, gib), EngineConfig(), weights)
    assert plan.num_streams >= (64 if gib >= 24 else 4)
    assert isinstance(plan, MemoryPlan)


def test_weights_are_estimated_to_a_few_percent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {"tts": folder_of_case("tts-1.7b-base", tmp_path)}
    plan = plan_folders(folders, card(monkeypatch, 80), EngineConfig(), "auto")
    # what an H100 held of it: 3.995 GiB
    assert plan.share_of("tts").weight_bytes / GIB == pytest.approx(3.995, rel=0.03)


def test_a_refusal_names_the_plan_and_what_would_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("tts-1.7b-base", "asr-1.7b", "chat-1.7B")
    folders = {name: folder_of_case(name, tmp_path) for name in names}
    with pytest.raises(DoesNotFit) as refused:
        plan_folders(folders, card(monkeypatch, 12), EngineConfig(), "auto")
    message = str(refused.value)
    assert "asr-1.7b: 3.8" in message
    assert message.endswith("What would fit: --weights int8, --weights int4, fewer models")
    with pytest.raises(DoesNotFit, match=r"What would fit: fewer models$"):
        plan_folders(folders, card(monkeypatch, 5), EngineConfig(), "auto")


def test_models_are_refused_before_any_is_loaded_and_a_limit_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, limits = card(monkeypatch, 3), list[int]()
    monkeypatch.setattr(backend, "limit_memory", limits.append)
    monkeypatch.setattr(backend, "load_weights", lambda *_: pytest.fail("it was loaded"))
    folders = {"tts": folder_of_case("tts-1.7b-base", tmp_path)}
    with pytest.raises(DoesNotFit):
        prepare_device(backend, folders, EngineConfig(device_bytes=2 * GIB), "auto")
    assert limits == [2 * GIB]


def test_a_host_has_no_plan_to_hold_models_against() -> None:
    folders = {name: embedded()[name] for name in ("izwi-tiny-tts", "izwi-tiny-asr")}
    assert prepare_device(torch_backend("cpu"), folders, EngineConfig(), "auto") == {}


def test_ranks_are_left_memory_for_captured_sums() -> None:
    folder = embedded()["izwi-tiny-chat"]
    sizes = family_of(folder).read_sizes(folder, ALONE)
    alone, shared = (estimated_graphs(sizes, 2, EngineConfig(), ranks) for ranks in (1, 2))
    assert shared.driver - alone.driver == 2 * len(sizes.layers) * 56 * (256 << 10)
