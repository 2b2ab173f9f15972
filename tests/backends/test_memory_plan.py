"""A memory plan never promises more than the device has, and leaves none to idle models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.backends.memory_plan import (
    MIB,
    DeviceMemory,
    GraphBytes,
    ModelNeeds,
    driver_bytes,
    plan_memory,
)
from izwi.config import EngineConfig
from izwi.errors import DoesNotFit

GIB = 1 << 30
PAGE = 1_835_008  # 16 positions of a model of 1.7B in 16 bits


def needs(name: str, weight_gib: float = 1.0, typical: int = 192, row: int = 0) -> ModelNeeds:
    graphs = GraphBytes(500 * MIB, 1000 * MIB if row else 0, 160 * MIB, 200 * MIB)
    return ModelNeeds(name, int(weight_gib * GIB), row, PAGE, 16, typical, 32_768, graphs, 64)


TRIO = (needs("tts", 3.9, row=5 * MIB), needs("asr", 3.8), needs("chat", 3.2, 768))


def device(gib: float, **more: int) -> DeviceMemory:
    return DeviceMemory(int(80 * GIB), int(gib * GIB), **more)


drawn_needs = st.builds(
    lambda name, weight, row, page, typical, longest, steps, codec: ModelNeeds(
        str(name),
        *(weight, row, page, 16, typical, max(typical, longest)),
        GraphBytes(steps, codec, steps // 4, steps // 4),
        64,
    ),
    st.integers(0, 10**9),
    st.integers(0, 4 * GIB),
    st.integers(0, 8 * MIB),
    st.integers(1, 4 * MIB),
    st.integers(1, 1000),
    st.integers(1, 40_000),
    st.integers(0, GIB),
    st.integers(0, GIB),
)


@given(
    st.lists(drawn_needs, min_size=1, max_size=4, unique_by=lambda model: model.name),
    st.floats(1, 80),
    st.integers(1, 128),
    st.booleans(),
)
def test_parts_never_exceed_what_is_free_and_every_stream_has_pages(
    models: list[ModelNeeds], gib: float, streams: int, loaded: bool
) -> None:
    memory, config = device(gib), EngineConfig(max_running=streams)
    try:
        plan = plan_memory(memory, models, config, loaded=loaded)
    except DoesNotFit:
        return
    own = sum(model.total_bytes - loaded * model.weight_bytes for model in plan.models)
    assert own + plan.shared_bytes <= memory.free_bytes
    assert 1 <= plan.num_streams <= streams
    for model in models:
        pages = plan.share_of(model.name).page_bytes // model.page_bytes
        least, most = model.least_pages(plan.num_streams), model.most_pages(plan.num_streams)
        assert least <= pages <= most


@given(st.floats(2, 79), st.floats(0, 1))
def test_a_larger_card_has_at_least_as_many_streams_and_pages(gib: float, more: float) -> None:
    config = EngineConfig()

    def planned(free: float) -> tuple[int, int]:
        try:
            plan = plan_memory(device(free), TRIO, config, loaded=True)
        except DoesNotFit:
            return 0, 0
        return plan.num_streams, plan.num_streams and sum(m.page_bytes for m in plan.models)

    small, large = planned(gib), planned(gib + more)
    assert large[0] >= small[0]
    if large[0] == small[0]:
        assert large[1] >= small[1]


def test_pages_go_to_models_by_need_not_in_equal_shares() -> None:
    plan = plan_memory(device(60), TRIO, EngineConfig(), loaded=True)
    tts, asr, chat = (plan.share_of(model.name).page_bytes for model in TRIO)
    assert tts == pytest.approx(asr, rel=0.01)
    assert 3.5 * asr < chat <= 4.01 * asr


def test_memory_that_one_model_cannot_use_goes_to_others() -> None:
    short = ModelNeeds("short", 0, 0, PAGE, 16, 192, 192, GraphBytes(), 64)
    plan = plan_memory(device(40), (short, needs("long")), EngineConfig(), loaded=True)
    assert plan.share_of("short").page_bytes == 64 * 12 * PAGE
    assert plan.share_of("long").page_bytes > 30 * GIB


def test_graphs_of_several_models_share_their_working_memory() -> None:
    alone = plan_memory(device(70), TRIO[:1], EngineConfig(), loaded=True)
    three = plan_memory(device(70), TRIO, EngineConfig(), loaded=True)
    assert three.graph_bytes == alone.graph_bytes == 1500 * MIB


def test_a_small_card_serves_fewer_streams_before_it_refuses() -> None:
    streams = []
    for free in (8.0, 6.0, 4.4, 3.7):
        plan = plan_memory(device(free), TRIO, EngineConfig(), loaded=True)
        streams.append(plan.num_streams)
    assert streams == sorted(streams, reverse=True)
    assert 1 <= streams[-1] < streams[0] < 64
    with pytest.raises(DoesNotFit, match=r"1\.50 GiB of 80\.00 GiB are free") as refused:
        plan_memory(device(1.5), TRIO, EngineConfig(), loaded=True)
    for part in ("tts: 3.90 GiB weights", "working memory of graphs", "graphs' buffers"):
        assert part in str(refused.value)


def test_weights_that_are_not_loaded_yet_count() -> None:
    with pytest.raises(DoesNotFit):
        plan_memory(device(12), TRIO, EngineConfig(), loaded=False)
    assert plan_memory(device(12), TRIO, EngineConfig(), loaded=True).num_streams == 64


def test_memory_between_arrays_serves_as_workspace() -> None:
    without = plan_memory(device(40), TRIO, EngineConfig(), loaded=True)
    with_idle = plan_memory(device(40, idle_bytes=200 * MIB), TRIO, EngineConfig(), loaded=True)
    full = plan_memory(device(40, idle_bytes=900 * MIB), TRIO, EngineConfig(), loaded=True)
    assert without.workspace_bytes - with_idle.workspace_bytes == 200 * MIB
    assert full.workspace_bytes == 128 * MIB, "one piece is needed in any case"


def test_configured_pages_are_kept_and_refused_where_they_do_not_fit() -> None:
    config = EngineConfig(kv_bytes=8 * GIB)
    plan = plan_memory(device(20), TRIO, config, loaded=True)
    assert sum(model.page_bytes for model in plan.models) == pytest.approx(8 * GIB, rel=0.001)
    with pytest.raises(DoesNotFit):
        plan_memory(device(9), TRIO, config, loaded=True)


def test_pages_are_left_for_models_that_are_loaded_later() -> None:
    one = plan_memory(device(40), TRIO[:1], EngineConfig(), loaded=True)
    of_four = plan_memory(device(40), TRIO[:1], EngineConfig(), loaded=True, num_shares=4)
    assert of_four.models[0].page_bytes == pytest.approx(one.models[0].page_bytes / 4, rel=0.01)


def test_a_shared_memory_gives_all_that_is_offered_to_pages() -> None:
    memory = DeviceMemory(GIB, GIB, is_shared=True)
    plan = plan_memory(memory, TRIO, EngineConfig(), loaded=True)
    assert sum(model.page_bytes for model in plan.models) == pytest.approx(GIB, rel=0.001)
    assert plan.shared_bytes == 0


def test_memory_for_images_is_left_free() -> None:
    memory, config = device(40), EngineConfig(images_bytes=8 * GIB)
    plan = plan_memory(memory, TRIO, config, loaded=False)
    alone = plan_memory(memory, TRIO, EngineConfig(), loaded=False)
    pages = [sum(model.page_bytes for model in one.models) for one in (plan, alone)]
    assert pages[1] - pages[0] == pytest.approx(8 * GIB, abs=MIB)
    assert any("8.00 GiB images" in parts for _, parts in plan.lines())
    with pytest.raises(DoesNotFit, match="images"):
        plan_memory(device(14), TRIO, config, loaded=False)


def test_what_the_driver_takes_grows_with_what_is_captured() -> None:
    one = driver_bytes(28, 80)
    assert 120 * MIB < one < 200 * MIB  # an H100 took 120 MB for a model of 28 layers
    assert driver_bytes(56, 80) - one == one - 64 * MIB
    # 96 layers on two H100: 40 graphs took 1.6 to 1.8 GB
    assert 1.8e9 < driver_bytes(96, 40, 2 * 96 * 40) < 2.5e9
