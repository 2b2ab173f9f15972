"""A device without memory for one request says so to its caller; all others are served."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from izwi.errors import DeviceFull
from tests.engine.toy import toy_request
from tests.engine.world import World, alone


def test_a_request_without_memory_is_refused_and_others_of_its_batch_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, fits = World(), toy_request("fits", 9, seed=3, frames=12)
    model: Any = world.engine._workers["toy"].runner._model
    monkeypatch.setattr(model, "poison", {"large"})
    monkeypatch.setattr(model, "poison_error", torch.OutOfMemoryError("CUDA out of memory"))
    world.submit(fits)
    world.submit(toy_request("large", 9, seed=4, frames=12))
    world.run()
    error = world.logs["large"].error
    assert isinstance(error, DeviceFull)
    assert error.retry_after_s > 0
    assert "retry later" in str(error)
    assert world.logs["fits"].pcm == alone(fits).pcm
    world.submit(toy_request("next", 9, seed=5, frames=4))
    world.run()
    assert world.logs["next"].error is None
