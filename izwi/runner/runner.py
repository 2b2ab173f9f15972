"""Run what was planned: encoders, one forward pass, the codec. Knows no queue and no policy."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from izwi.cache.kv import PagedKV, bytes_per_page
from izwi.cache.pages import pages_for
from izwi.cache.state import StateArena
from izwi.config import EngineConfig
from izwi.model import Model, Row, SpeechModel
from izwi.ops.torch_ops import TorchOps
from izwi.request import Sequence, Task
from izwi.runner.sampler import Sampler

R = TypeVar("R")
Item = TypeVar("Item")


class Runner:
    """One model with its keys and values and its codec state."""

    def __init__(self, model: Model, ops: TorchOps, config: EngineConfig, kv_bytes: int):
        self._model, self._ops = model, ops
        self.num_codebooks = model.num_codebooks
        self.speech = cast(SpeechModel, model) if model.task is Task.SPEECH else None
        per_page = bytes_per_page(model.kv, config.page_size, ops.dtype)
        useful = config.max_running * pages_for(model.max_positions, config.page_size)
        self.num_pages = max(1, min(kv_bytes // per_page, useful))
        self._kv = PagedKV(model.kv, self.num_pages, config.page_size, ops.device, ops.dtype)
        specs = self.speech.codec_state if self.speech else {}
        self.states = StateArena(specs, config.max_running, ops.device, ops.dtype)

    @torch.inference_mode()
    def encode(self, pieces: Seq[tuple[Sequence, int]]) -> list[BaseException | None]:
        """Encode piece i of each sequence into `sequence.encoded[i]`; what failed, per piece."""

        def run(batch: Seq[tuple[Sequence, int]]) -> list[Any]:
            inputs = [sequence.request.prompt.encode_inputs[i] for sequence, i in batch]
            return self._model.encode(inputs)

        errors: list[BaseException | None] = []
        for (sequence, i), result in zip(pieces, _each(run, pieces), strict=True):
            failed = result if isinstance(result, BaseException) else None
            sequence.encoded[i] = None if failed else result
            errors.append(failed)
        return errors

    @torch.inference_mode()
    def forward(self, rows: Seq[Row]) -> list[tuple[int, ...] | BaseException | None]:
        """Run the rows as one forward pass.

        Returns:
            For each row the entry drawn, None if its last position is not the last known, or
            what failed.
        """

        def run(batch: Seq[Row]) -> list[tuple[int, ...] | None]:
            emitting = [row.sequence for row in batch if row.emits]
            sampler = Sampler(emitting, self._model.suppressed)
            drawn = self._model.step(batch, self._kv.context(batch), sampler.pick)
            entries = iter(self._ops.numpy(drawn).tolist() if emitting else [])
            return [tuple(next(entries)) if row.emits else None for row in batch]

        return _each(run, rows)

    @torch.inference_mode()
    def vocode(
        self, pieces: Seq[tuple[Sequence, int]]
    ) -> list[npt.NDArray[np.float32] | BaseException]:
        """Turn the next n frames of each sequence into sound, (samples,) float32 a piece.

        Pieces of as many frames run as one batch; each stream's state is gathered before and
        scattered after.
        """
        sounds: dict[int, npt.NDArray[np.float32] | BaseException] = {}
        for frames in sorted({count for _, count in pieces}):
            batch = [sequence for sequence, count in pieces if count == frames]
            made = _each(partial(self._vocode_equal, frames), batch)
            sounds.update(
                (id(sequence), sound) for sequence, sound in zip(batch, made, strict=True)
            )
        return [sounds[id(sequence)] for sequence, _ in pieces]

    def _vocode_equal(self, frames: int, batch: Seq[Sequence]) -> list[npt.NDArray[np.float32]]:
        assert self.speech is not None
        codes = np.array(
            [s.emitted[s.num_vocoded : s.num_vocoded + frames] for s in batch], dtype=np.int64
        )
        for sequence in batch:
            if sequence.num_vocoded == 0:
                self._warm(sequence)
        rows = [self._row(sequence) for sequence in batch]
        sound, state = self.speech.vocode(codes, self.states.gather(rows))
        self.states.scatter(rows, state)
        return list(self._ops.numpy(sound).astype(np.float32, copy=False))

    def _warm(self, sequence: Sequence) -> None:
        """Let the codec hear the reference clip that an in-context clone continues."""
        assert self.speech is not None
        row = self._row(sequence)
        warm = self.speech.warm_codes(sequence)
        if warm is not None and len(warm):
            self.states.clear(row)  # a batch that failed may have warmed it already
            _, state = self.speech.vocode(warm[None], self.states.gather([row]))
            self.states.scatter([row], state)

    @staticmethod
    def _row(sequence: Sequence) -> int:
        assert sequence.state_row is not None
        return sequence.state_row

    def to_host(self, array: Any) -> npt.NDArray[Any]:
        """Copy an encoder's result to the host."""
        return self._ops.numpy(array)


def _each(run: Callable[[Seq[Item]], list[R]], batch: Seq[Item]) -> list[R | BaseException]:
    """Run a batch; if it fails, run its items one by one, so that only the culprit fails.

    What a failed batch wrote to pages or state, the single runs write again.
    """
    if not batch:
        return []
    try:
        return list(run(batch))
    except Exception as error:  # the engine must outlive any one request
        if len(batch) == 1:
            return [error]
    return [result for item in batch for result in _each(run, [item])]
