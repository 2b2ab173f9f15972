"""Memory is divided once, at the start, and never more than there is."""

from __future__ import annotations

from izwi.backends.budget import budget_of
from izwi.backends.memory_plan import DeviceMemory, MemoryPlan, ModelPlan
from izwi.backends.torch.backend import TorchBackend
from izwi.backends.torch.ops import TorchOps
from izwi.config import EngineConfig
from tests.engine.toy import toy_request
from tests.engine.world import World, alone

CPU = TorchBackend(TorchOps())


def test_models_share_host_memory_and_disk_equally() -> None:
    config = EngineConfig(host_bytes=800, disk_bytes=60, encoded_bytes=20)
    plan = MemoryPlan(DeviceMemory(0, 0), 1, (ModelPlan("a", 0, 0, 0, 1000),))
    one, two = budget_of(config, plan, "a", 1), budget_of(config, plan, "a", 2)
    assert one.device.page_bytes == two.device.page_bytes == 1000
    assert one.page_bytes + one.state_bytes == 800
    assert two.page_bytes + two.state_bytes == 400
    assert (two.disk_bytes, two.encoded_bytes) == (30, 10)


def test_a_cpu_keeps_most_of_its_memory() -> None:
    memory = CPU.memory()
    assert memory.is_shared
    assert 0 < memory.free_bytes <= 1 << 30


def test_eight_bit_pages_are_smaller_and_still_speak() -> None:
    exact, small = World(pages=100), World(pages=100, kv_dtype="int8")
    assert small.engine.load["toy"]["page_bytes"] < exact.engine.load["toy"]["page_bytes"]
    request = toy_request("a", 9, seed=4, frames=20)
    small.submit(request)
    small.run()
    assert small.logs["a"].error is None
    assert len(small.logs["a"].pcm) == 4 * len(small.logs["a"].entries) > 0
    # the same request is the same again, though not as with exact pages
    assert small.logs["a"].entries == alone(request, kv_dtype="int8").entries
