"""Kernels are compiled on other threads before anything is captured, and without side effects."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from triton.runtime import _async_compile
from triton.runtime.jit import JITFunction

from izwi.backends.torch.captured.compiling import compiling_only, rehearse


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Launches, and whether each is only compiled."""
    seen: list[tuple[str, bool]] = []

    def run(kernel: Any, *, grid: Any, warmup: bool) -> None:
        assert grid == (1,)
        seen.append((kernel, warmup))
        mode = _async_compile.active_mode.get()
        if warmup:
            assert mode is not None
            mode.submit(kernel, lambda: compiled_on(threading.get_ident()), lambda _: None)

    def compiled_on(thread: int) -> int:
        assert thread != threading.main_thread().ident
        seen.append(("compiled", True))
        return thread

    monkeypatch.setattr(JITFunction, "run", run)
    return seen


def launch(name: str) -> None:
    run: Any = JITFunction.run
    run(name, grid=(1,), warmup=False)


def test_launches_inside_are_compiled_and_those_of_other_threads_are_not_held_up(
    launches: list[tuple[str, bool]],
) -> None:
    launch("before")
    with compiling_only():
        launch("inside")
        other = threading.Thread(target=launch, args=("of a model that serves",))
        other.start()
        other.join()
    launch("after")
    assert [one for one in launches if one[0] != "compiled"] == [
        ("before", False),
        ("inside", True),
        ("of a model that serves", False),
        ("after", False),
    ]
    assert launches.count(("compiled", True)) == 1


def test_failed_compilation_is_logged_and_capture_goes_on(
    launches: list[tuple[str, bool]], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("no such kernel")

    rehearse(fail)
    assert "one after the other" in caplog.text
    launch("after")
    assert launches == [("after", False)]
