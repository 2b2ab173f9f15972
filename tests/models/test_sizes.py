"""Sizes that are read from a configuration are those of the model that is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from izwi.backends.torch.backend import torch_backend
from izwi.model.family import Family
from izwi.model.sizes import ModelSizes
from izwi.ops.ranks import Part
from izwi_models import FAMILIES
from izwi_models.lfm2_audio import FAMILY as S2S
from izwi_models.qwen3_aligner import FAMILY as ALIGNER
from izwi_models.qwen3_vl import FAMILY as VL
from tests.models.kinds import KINDS
from tests.models.tiny_aligner import write_tiny_aligner
from tests.models.tiny_lfm2_audio import write_tiny_lfm2_audio
from tests.models.tiny_tts import write_tiny_tts
from tests.models.tiny_vl import write_tiny_vl

CASES: dict[str, tuple[Family, Callable[[Path], Path]]] = {
    **KINDS,
    "cloning": (KINDS["tts"][0], lambda folder: write_tiny_tts(folder, "base")),
    "aligner": (ALIGNER, write_tiny_aligner),
    "s2s": (S2S, write_tiny_lfm2_audio),
    "vl": (VL, write_tiny_vl),
}


def test_every_family_is_here() -> None:
    ours = {family.model for family in FAMILIES if not family.has_own_engine}
    assert {family.model for family, _ in CASES.values()} == ours


@pytest.mark.parametrize("kind", CASES)
def test_sizes_are_known_without_weights(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, write = CASES[kind]
    folder, backend = write(tmp_path / "m"), torch_backend("cpu", "float32")
    load, asked = backend.load_weights, list[Mapping[str, tuple[int, ...]]]()
    packables: list[frozenset[str]] = []

    def load_weights(
        place: Path,
        shapes: Mapping[str, tuple[int, ...]],
        packable: frozenset[str] = frozenset(),
        parts: Mapping[str, Part] | None = None,
    ) -> Any:
        asked.append(shapes)
        packables.append(packable)
        return load(place, shapes, packable, parts)

    monkeypatch.setattr(backend, "load_weights", load_weights)
    loaded, read = (
        ModelSizes.from_model(family.load_model(folder, backend)),
        family.read_sizes(folder),
    )
    for name in ("layers", "max_positions", "vocabularies", "encodes"):
        assert getattr(read, name) == getattr(loaded, name)
    assert [dict(shapes) for shapes in read.weights] == [dict(shapes) for shapes in asked]
    assert read.packable == packables[0]
    assert read.packable <= set(read.weights[0])
    assert read.packable
    assert not any(packables[1:])  # of a codec's tensors none
    assert len(read.encoders) == len(loaded.encoders)
    assert len(read.whole_encoders) == len(loaded.whole_encoders) == (kind == "vl")
    of_read, of_loaded = ((*sizes.encoders, *sizes.whole_encoders) for sizes in (read, loaded))
    for ours, theirs in zip(of_read, of_loaded, strict=True):
        assert list(ours.shapes) == list(theirs.shapes)
        for shape in ours.shapes:
            assert ours.max_pieces(shape) == theirs.max_pieces(shape)
            assert ours.peak_values(shape, 3) == theirs.peak_values(shape, 3)
    assert (read.codec is None) == (loaded.codec is None)
    if read.codec is not None and loaded.codec is not None:
        assert dict(read.codec.state) == dict(loaded.codec.state)
        assert read.codec.peak_values(5) == loaded.codec.peak_values(5)
