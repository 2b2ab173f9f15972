"""Rows of captured steps with adapters: the kernel, and the steps, which answer as others do."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from izwi.backends.torch.backend import TorchBackend
from izwi.backends.torch.captured.adapter_tables import AdapterTables
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.triton import adapters as triton_adapters
from izwi.backends.torch.triton.adapters import MAX_RANK, AdaptedRows
from izwi.model.adapters import ProductUpdate, RowUpdates
from tests.backends.torch.eager import EagerOps, drawn_by_torch
from tests.models.test_adapters import Files, asked, check_equal, engine_of, run
from tests.ops.devices import DEVICE, DTYPES, GPU, assert_near, normal


class FoldingOps(EagerOps):
    """Norms are part of the weights, as on CUDA."""

    def fold_norm(self, norm: Tensor, weight: Any) -> tuple[Tensor | None, Any]:
        return None, weight * norm


class FakeStack:
    """Products by name."""

    products = ("other", "p", "q")


class FakeModel:
    adapted = FakeStack()


class FakeRow:
    """A row of one position."""

    start, stop = 0, 1

    def __init__(self, adapter: Any):
        self.adapter = adapter


def tables_of(monkeypatch: pytest.MonkeyPatch) -> AdapterTables:
    module = "izwi.backends.torch.captured.adapter_tables.TakesAdapters"
    monkeypatch.setattr(module, FakeModel)
    return AdapterTables(FakeModel(), torch.device(DEVICE))  # type: ignore[arg-type]


def update_of(rank: int) -> dict[str, ProductUpdate]:
    return {"p": ProductUpdate(normal(rank, 4, seed=1), normal(3, rank, seed=2))}


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_get_what_their_adapters_add(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    inputs, outputs = 300, 140  # no multiples of a tile
    monkeypatch.setattr(triton_adapters, "MAX_RANK", 32)  # fewer programs to interpret

    def update(rank: int, seed: int) -> ProductUpdate:
        down = normal(rank, inputs, seed=seed, dtype=dtype) / inputs**0.5
        return ProductUpdate(down, normal(outputs, rank, seed=seed + 1, dtype=dtype) / rank)

    first, second, third = {"p": update(19, 1)}, {"p": update(5, 5)}, {"q": update(7, 7)}
    rows: list[Any] = [FakeRow(one) for one in (None, first, second, third)]
    tables = tables_of(monkeypatch)
    where = torch.from_numpy(tables.addresses(rows)).to(DEVICE)
    x, y = normal(4, inputs, seed=9, dtype=dtype), normal(4, outputs, seed=10, dtype=dtype)
    ops = TorchOps(DEVICE, torch.float32)
    wide = [
        FakeRow(
            row.adapter
            and {n: ProductUpdate(u.down.float(), u.up.float()) for n, u in row.adapter.items()}
        )
        for row in rows
    ]
    for name in ("other", "p"):
        expected = RowUpdates(ops, wide).add(name, x.float(), y.float())  # type: ignore[arg-type]
        found = AdaptedRows(where, tables.products).add(name, x, y.clone())
        assert_near(found, expected, dtype)
        same = [row.adapter is None or name not in row.adapter for row in rows]
        assert torch.equal(found[same], y[same])
        assert name == "other" or not torch.equal(found, y)
    assert AdaptedRows(where, tables.products).add("unknown", x, y) is y


def test_ranks_that_the_kernel_does_not_hold_are_not_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = tables_of(monkeypatch)
    known, larger = update_of(MAX_RANK), update_of(MAX_RANK + 1)
    assert tables.takes([FakeRow(None), FakeRow(known)])  # type: ignore[list-item]
    assert not tables.takes([FakeRow(known), FakeRow(larger)])  # type: ignore[list-item]


def test_tables_stay_while_the_next_step_has_their_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_of(monkeypatch)
    one, other = update_of(2), update_of(2)
    both: Any = [FakeRow(one), FakeRow(None), FakeRow(other)]
    before = tables.addresses(both)
    assert before[1] == 0
    assert len(set(before.tolist())) == 3
    assert tables.addresses(both).tolist() == before.tolist()
    assert tables.addresses(both[2:]).tolist() == before[2:].tolist()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Drawn once."""
    return Files(tmp_path_factory.mktemp("adapters"))


def numbers_at(address: int, *shape: int) -> Tensor:
    count = int(np.prod(shape))
    kind = ctypes.c_float * count
    return torch.from_numpy(np.ctypeslib.as_array(kind.from_address(address)).reshape(shape))


def add_rows_in_torch(tables: Tensor, product: int, x: Tensor, y: Tensor) -> None:
    """What the kernel does, row by row, from the same addresses."""
    for row, table in enumerate(tables.tolist()):
        if table:
            place = ctypes.c_int64 * (3 * (product + 1))
            down, up, rank = place.from_address(table)[3 * product :]
            if rank:
                low = numbers_at(down, rank, x.shape[1]) @ x[row]
                y[row] += numbers_at(up, y.shape[1], rank) @ low


@pytest.mark.parametrize(
    "kernels", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["torch", "kernels"]
)
def test_captured_steps_answer_as_merged_weights_do(
    monkeypatch: pytest.MonkeyPatch, files: Files, kernels: bool
) -> None:
    if kernels and GPU:
        pytest.skip("its steps are run on a CPU; tests/models/test_cuda_adapters.py has others")
    added: list[int] = []
    add_rows = triton_adapters.add_rows if kernels else add_rows_in_torch

    def counted(tables: Tensor, *rest: Any) -> None:
        added.append(int((tables != 0).sum()))
        add_rows(tables, *rest)

    monkeypatch.setattr(triton_adapters, "add_rows", counted)
    cases = [(prompt, name) for prompt in range(2) for name in files.refs]
    with drawn_by_torch():
        engine = engine_of(files.base, TorchBackend(FoldingOps()))
        graphs: Any = engine.runners[0]._graphs
        graphs.decodes.warm_up(adapted=True)
        adapted = {kind for rows in graphs.decodes._decodes.values() for kind in rows.graphs}
        added.clear()
        found = run(engine, [asked(files, *case) for case in cases])
        assert max(added) == 4  # of six rows of one step
        after = {kind for rows in graphs.decodes._decodes.values() for kind in rows.graphs}
        assert after == adapted, "a step waited for a capture"
        added.clear()
        plain = run(engine, [asked(files, 1, "", "plain")])
        assert not added
    assert plain[0][0] == found[3][0]
    for name, folder in files.folders.items():
        merged = engine_of(folder, TorchBackend(TorchOps("cpu", torch.float32)))
        for case, answer in zip(cases, found, strict=True):
            if case[1] == name:
                check_equal(answer, run(merged, [asked(files, case[0], "")])[0])
