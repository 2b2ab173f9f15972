"""Kernels and graphs that are made while requests are served are counted; earlier ones are not."""

from __future__ import annotations

import torch

from izwi.backends import compilations
from izwi.backends.compilations import Compilation, Compilations
from izwi.backends.torch.captured.capturer import GraphCapturer


def test_only_what_happens_inside_is_counted() -> None:
    counter = Compilations()
    compilations.report(Compilation("compiled", "before", 0.1))
    with counter.counting():
        compilations.report(Compilation("compiled", "kernel", 0.1))
        compilations.report(Compilation("loaded", "kernel", 0.1))
        compilations.report(Compilation("captured", "graph", 0.1))
    compilations.report(Compilation("captured", "after", 0.1))
    assert (counter.kernels, counter.graphs) == (2, 1)


def test_a_counter_inside_another_takes_its_place() -> None:
    outer, inner = Compilations(), Compilations()
    with outer.counting():
        with inner.counting():
            compilations.report(Compilation("compiled", "kernel", 0.1))
        compilations.report(Compilation("captured", "graph", 0.1))
    assert (inner.kernels, inner.graphs) == (1, 0)
    assert (outer.kernels, outer.graphs) == (0, 1)


def test_every_capture_is_reported() -> None:
    counter, heard = Compilations(), list[Compilation]()
    compilations.observers.append(heard.append)
    try:
        with counter.counting():
            GraphCapturer(torch.device("cpu")).capture(lambda: torch.zeros(1))
    finally:
        compilations.observers.remove(heard.append)
    assert counter.graphs == 1
    assert [one.kind for one in heard] == ["captured"]
