"""A backend draws what torch draws: the same logits and the same log give the same ids."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from izwi.model.tracks import Track
from izwi.request.request import SamplingParams
from izwi.request.sequence import Sequence
from tests.backends.kinds import backend_of
from tests.engine.toy import toy_request
from tests.examples import examples
from tests.steps import draws

pytest.importorskip("mlx.core")

VOCAB, STOP = 50, 49
_BANNED = np.zeros(VOCAB, dtype=bool)
_BANNED[40:50] = True  # the stop id is drawn all the same
TRACKS = (Track("text", 3, VOCAB, _BANNED), Track("more", 1, VOCAB))

SAMPLING = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.9, 2.0]),
    top_k=st.sampled_from([0, 1, 7, 200]),
    top_p=st.sampled_from([1.0, 0.9, 0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -0.4]),
    min_p=st.sampled_from([0.0, 0.0, 0.15]),
    logit_bias=st.sampled_from([(), ((3, 4.0), (9, -100.0), (10**6, 5.0))]),
)


def sequence(
    emitted: list[int], sampling: SamplingParams, seed: int, logprobs: int | None
) -> Sequence:
    request = replace(
        toy_request("a", 3, seed=1, frames=99),
        sampling=sampling,
        codebook_sampling=sampling,
        seed=seed,
        stop_ids=(STOP,),
        logprobs=logprobs is not None,
        top_logprobs=logprobs or 0,
    )
    made = Sequence(request, 0)
    made.emitted = [(token, 0) for token in emitted]
    return made


def drawn(backend: str, rows: list[tuple[Any, ...]], logits: np.ndarray, track: int) -> Any:
    made = backend_of(backend)
    sampler = made.sampling(TRACKS).for_step(draws(sequence(*row) for row in rows), track)
    ids = [
        made.ops.numpy(sampler.pick(made.ops.array(part), codebook)).tolist()
        for codebook, part in enumerate(logits)
    ]
    return ids, sampler.logprobs()


@examples(60)
@given(
    rows=st.lists(
        st.tuples(
            st.lists(st.integers(0, VOCAB - 1), max_size=6),
            SAMPLING,
            st.integers(0, 2**64 - 1),
            st.sampled_from([None, 0, 3]),
        ),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 1000),
    track=st.integers(0, 1),
)
def test_ids_and_log_probabilities_are_those_of_torch(
    rows: list[tuple[Any, ...]], seed: int, track: int
) -> None:
    shape = 18, len(rows), VOCAB  # beyond one block of noise
    logits = 3 * np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    (ids, likely), (expected, known) = (drawn(b, rows, logits, track) for b in ("mlx", "torch"))
    assert ids == expected
    assert likely.keys() == known.keys()
    for row, values in known.items():
        np.testing.assert_allclose(likely[row], values, rtol=1e-5, atol=1e-5)


def test_many_quantiles_give_the_same_ids() -> None:
    """Where two ids meet, the noise must lie within a last bit of their border to differ."""
    import mlx.core as mx
    import torch

    from izwi.backends.mlx.sampler import draw
    from izwi.backends.torch.sampler import draw as torch_draw

    logits = 2 * np.random.default_rng(7).standard_normal(VOCAB).astype(np.float32)
    noise = (np.arange(20_000) + 0.5) / 20_000
    on_cpu = mx.default_device().type == mx.cpu
    precisions = [mx.float32, mx.float64] if on_cpu else [mx.float32]
    for precision, params in product(
        precisions, (SamplingParams(1.0, 0, 1.0), SamplingParams(0.7, 10, 0.8))
    ):
        rows, many = [params] * len(noise), np.tile(logits, (len(noise), 1))
        found = np.array(draw(mx.array(many), rows, noise, precision))
        expected = torch_draw(torch.from_numpy(many), rows, torch.from_numpy(noise)).numpy()
        assert len(set(found.tolist())) > 2
        assert (found != expected).sum() <= 2
