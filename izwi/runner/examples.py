"""Run what captured steps leave out once, before requests come, so that its kernels are there.

On CUDA most steps are captured at the start, and their kernels compiled with them. Encoders without
graphs, and chunks of prompts with images, run kernel by kernel: the first image would wait for
kernels that are compiled or loaded while others stall.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from izwi.cache.pages import pages_for
from izwi.model.encoders import EncodesPadded, EncodesWhole
from izwi.model.protocol import Model
from izwi.model.step_batch import Row
from izwi.ops.protocol import Array
from izwi.request.request import EncodeInput, Prompt, Request
from izwi.request.sequence import Sequence
from izwi.runner.batch import row_of

# Kernels of products are compiled for a few numbers of rows: each chunk here needs another one.
_CHUNKS = (1, 2, 16, 32, 64, 128, 256, 512)


class Pages(Protocol):
    """The pages that examples may overwrite."""

    num_pages: int
    page_size: int


def run_examples(
    model: Model,
    pages: Pages,
    encode: Callable[[Seq[EncodeInput]], list[Any]],
    run: Callable[[Seq[Row]], Array],
) -> None:
    """Encode an example for each encoder, and run the example prompts of a model with images.

    Args:
        model: The model.
        pages: Its pages, of which none is in use yet.
        encode: Encodes pieces without graphs.
        run: Runs rows without graphs.
    """
    if isinstance(model, EncodesPadded):
        for kind, encoder in model.padded_encoders.items():
            # longer pieces, and those of an encoder that a batch shares with none, have no graph
            encode([EncodeInput(kind, np.zeros(encoder.shapes[-1], np.float32))])
    if isinstance(model, EncodesWhole):
        prompts = [prompt for prompt in model.example_prompts() if _fits(prompt, pages)]
        for prompt in prompts:
            for row in _rows(prompt, encode(prompt.encode_inputs), pages, prompt is prompts[-1]):
                run([row])


def _fits(prompt: Prompt, pages: Pages) -> bool:
    return prompt.num_positions <= pages.num_pages * pages.page_size


def _rows(prompt: Prompt, encoded: list[Any], pages: Pages, in_chunks: bool) -> Iterator[Row]:
    """Yield the rows of a prompt: as a whole, or in chunks of every size that has kernels."""
    length = prompt.num_positions
    sequence = Sequence(Request("example", "", prompt), 0)
    sequence.encoded = encoded
    sequence.kv.pages = list(range(pages_for(length, pages.page_size)))
    ends = [end for end in accumulate(_CHUNKS) if in_chunks and end < length]
    for start, stop in zip([0, *ends], [*ends, length], strict=True):
        yield row_of(sequence, start, stop)
