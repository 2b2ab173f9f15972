"""Inputs of a step that is launched before the host knows what the last one draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from izwi.backends.torch.backend import torch_backend
from izwi.model.protocol import UNKNOWN
from izwi.request.sequence import Sequence
from izwi.runner.batch import row_of
from tests.models.kinds import KINDS, request_of
from tests.models.loading import load_checkpoint


@pytest.mark.parametrize("name", KINDS)
def test_only_the_entry_is_unknown(name: str, tmp_path: Path) -> None:
    family, write = KINDS[name]
    backend = torch_backend("cpu", "float32")
    frontend, model = load_checkpoint(family, write(tmp_path / "m"), backend)
    one, other = (Sequence(request_of(family, frontend, i), i) for i in range(2))
    for sequence in (one, other):
        sequence.emitted = [(5 + k,) * model.tracks[0].num_codebooks for k in range(4)]
    last = [row_of(s, s.num_prompt + 3, s.num_prompt + 4) for s in (one, other)]
    prompt_end = row_of(other, other.num_prompt - 1, other.num_prompt)  # as of a new request
    for rows in (last, [last[0], prompt_end], [last[0]]):
        known = model.inputs(rows)
        if known is None:  # the end of a cloned prompt is no id
            assert prompt_end in rows
            continue
        dropped = one.emitted.pop()
        one.pending.entries = 1
        ahead = row_of(one, one.num_prompt + 3, one.num_prompt + 4)
        assert ahead.emits
        assert ahead.is_ahead
        found = model.inputs([ahead, *rows[1:]])
        assert found is not None
        assert (found[0, : model.tracks[0].num_codebooks] == UNKNOWN).all()
        assert np.array_equal(
            found[0, model.tracks[0].num_codebooks :], known[0, model.tracks[0].num_codebooks :]
        )
        assert np.array_equal(found[1:], known[1:])
        one.pending.entries = 0
        one.emitted.append(dropped)
