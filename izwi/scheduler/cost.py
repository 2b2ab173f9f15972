"""Predict how long a step takes, from what it runs. Pure: no clock, no tensor, no I/O.

A step's time is nearly linear in a few counts: a constant for the forward pass, then a price for
each row that decodes, each position of a prompt, each piece of audio, each call of the codec and
each of its frames, and constants for having prompts or pieces of audio at all. The eight prices are
learned from measured steps.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from operator import mul
from statistics import fmean, median
from typing import NamedTuple

SAMPLE_WINDOW = 128
REFIT_STEPS = 64
# Residuals beyond this many robust standard deviations have the weight of one at that distance.
HUBER = 3.0
# A step that took this many times longer or shorter than predicted is set aside ...
DOUBT = 2.5
# ... until this many in a row with the same parts agree, which means that prices have changed.
AGREEING = 3
# Lower limit of a robust standard deviation, as a share of the mean step: clocks are coarse.
LEAST_SPREAD = 1e-3


class StepWork(NamedTuple):
    """The work of one step, as counts.

    Attributes:
        decode_rows: Rows of one position.
        prefill_tokens: Positions of all other rows.
        encodes: Pieces of audio.
        vocode_calls: Calls of the codec: one for each size of chunk in the step.
        vocode_frames: Frames that become audio, all streams together.
    """

    decode_rows: int = 0
    prefill_tokens: int = 0
    encodes: int = 0
    vocode_calls: int = 0
    vocode_frames: int = 0

    @staticmethod
    def from_rows(lengths: Sequence[int], encodes: int, chunks: Sequence[int]) -> StepWork:
        """Count a step.

        Args:
            lengths: Positions of each row.
            encodes: Pieces of audio.
            chunks: Frames of each chunk of audio.
        """
        decode_rows = lengths.count(1)
        return StepWork(
            decode_rows=decode_rows,
            prefill_tokens=sum(lengths) - decode_rows,
            encodes=encodes,
            vocode_calls=len(set(chunks)),
            vocode_frames=sum(chunks),
        )


@dataclass(frozen=True, slots=True)
class StepCost:
    """Prices of the parts of a step, in seconds; 0 until they are measured.

    Attributes:
        base_s: A forward pass, whatever its size.
        prefill_call_s: Having prompts in a step, in addition to `base_s`.
        encode_call_s: Having pieces of audio in a step.
    """

    base_s: float = 0.0
    decode_row_s: float = 0.0
    prefill_token_s: float = 0.0
    encode_s: float = 0.0
    vocode_call_s: float = 0.0
    vocode_frame_s: float = 0.0
    prefill_call_s: float = 0.0
    encode_call_s: float = 0.0

    def seconds(self, work: StepWork) -> float:
        """Predict how long a step with this work takes."""
        base_s = self.base_s if work.decode_rows or work.prefill_tokens else 0.0
        return (
            base_s
            + self.decode_row_s * work.decode_rows
            + self.prefill_token_s * work.prefill_tokens
            + self.encode_s * work.encodes
            + self.vocode_call_s * work.vocode_calls
            + self.vocode_frame_s * work.vocode_frames
            + (self.prefill_call_s if work.prefill_tokens else 0.0)
            + (self.encode_call_s if work.encodes else 0.0)
        )


def fit(samples: Iterable[tuple[StepWork, float]]) -> StepCost:
    """Learn the prices from measured steps; none is negative.

    Robust: a tenth of the steps may be wrong by any factor. Prices without a sample are 0.
    """
    rows = [_Row.from_step(work, seconds) for work, seconds in samples]
    return StepCost(*_fit(rows, [0.0] * len(_PRICES), rounds=8, sweeps=500))


class OnlineCost:
    """Prices that follow the steps of a running engine.

    Keeps the last `SAMPLE_WINDOW` steps and fits every `REFIT_STEPS` (sooner at first), starting
    from the current prices, so that parts that did not run lately keep theirs.

    A step far from its prediction is ignored unless the next ones like it agree. If they do, the
    samples of the rarest of their parts are dropped at once: otherwise a few slow steps with that
    part would determine its price until `SAMPLE_WINDOW` steps have passed.
    """

    def __init__(self, cost: StepCost | None = None):
        self.cost = cost or StepCost()
        self._rows: deque[_Row] = deque(maxlen=SAMPLE_WINDOW)
        self._priced = {place for place, price in enumerate(astuple(self.cost)) if price > 0.0}
        self._doubtful: dict[tuple[int, ...], list[_Row]] = {}  # by parts; all too long or short
        self._num_steps = 0

    def add(self, work: StepWork, seconds: float) -> None:
        """Learn from a step that ran. Steps without work are ignored."""
        if not any(work):
            return
        row = _Row.from_step(work, seconds)
        self._num_steps += 1
        changed = self._set_aside(row, self.cost.seconds(work))
        if changed is None:
            return
        self._rows.extend(changed or (row,))
        young = self._num_steps <= REFIT_STEPS
        if changed or self._num_steps % REFIT_STEPS == 0 or self._num_steps in (8, 16, 32):
            # later the prices start near their result, so one short round is enough
            rounds, sweeps = (4, 100) if young or changed else (1, 40)
            self.cost = StepCost(*_fit(self._rows, list(astuple(self.cost)), rounds, sweeps))
            self._priced.update(place for known in self._rows for place in known.parts)

    def _set_aside(self, row: _Row, predicted_s: float) -> list[_Row] | None:
        """Set aside a step that is far from its prediction.

        Returns:
            None if it is set aside; the steps to learn from if it and those before it agree; empty
            if it is close to its prediction.
        """
        parts = row.parts
        slow, fast = row.seconds > DOUBT * predicted_s, DOUBT * row.seconds < predicted_s
        if not (slow or fast) or not self._priced.issuperset(parts):
            self._doubtful.pop(parts, None)
            return []
        before = self._doubtful.setdefault(parts, [])
        if before and (before[-1].seconds > predicted_s) != slow:
            before.clear()
        before.append(row)
        if len(before) < AGREEING:
            return None
        self._forget(parts)
        return self._doubtful.pop(parts)

    def _forget(self, parts: Sequence[int]) -> None:
        """Drop the steps that have the rarest of these parts."""
        counts = Counter(place for row in self._rows for place in row.parts)
        rarest = min(parts, key=lambda place: counts[place])
        kept = [row for row in self._rows if rarest not in row.parts]
        self._rows = deque(kept, maxlen=SAMPLE_WINDOW)


_PRICES = StepCost.__slots__


class _Row(NamedTuple):
    """Return one equation: the nonzero counts, by the index of their price, and the seconds."""

    counts: tuple[tuple[int, float], ...]
    seconds: float

    @staticmethod
    def from_step(work: StepWork, seconds: float) -> _Row:
        forward = bool(work.decode_rows or work.prefill_tokens)
        counts = enumerate((forward, *work, bool(work.prefill_tokens), bool(work.encodes)))
        return _Row(tuple((place, float(count)) for place, count in counts if count), seconds)

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the indices of the prices that a row pays."""
        return tuple(place for place, _ in self.counts)


def _fit(rows: Sequence[_Row], prices: list[float], rounds: int, sweeps: int) -> list[float]:
    """Solve the least squares; each round weighs rows by the residuals of the previous one."""
    size = len(_PRICES)
    for _ in range(rounds if rows else 0):
        matrix = [[0.0] * size for _ in range(size)]
        target = [0.0] * size
        for (counts, seconds), weight in zip(rows, _weights(rows, prices), strict=True):
            for place, count in counts:
                weighted = weight * count
                line = matrix[place]
                for other, factor in counts:
                    line[other] += weighted * factor
                target[place] += weighted * seconds
        prices = _descend(matrix, target, prices, sweeps)
    return prices


def _weights(rows: Sequence[_Row], prices: Sequence[float]) -> list[float]:
    """Return Huber's weights: 1 for small residuals, falling with the distance for large ones."""
    errors = [
        abs(seconds - sum([count * prices[place] for place, count in counts]))
        for counts, seconds in rows
    ]
    spread = max(1.4826 * median(errors), LEAST_SPREAD * fmean([row.seconds for row in rows]))
    limit = HUBER * spread
    return [1.0 if error <= limit else limit / error for error in errors]


def _descend(
    matrix: list[list[float]], target: list[float], prices: list[float], sweeps: int
) -> list[float]:
    """Solve the normal equations for prices >= 0 by coordinate descent, in place.

    If the samples cannot distinguish two prices, both stay near their start, which is wanted for a
    window in which every step has the same number of rows.
    """
    for _ in range(sweeps):
        moved = False
        for place, line in enumerate(matrix):
            if line[place] == 0.0:
                continue
            price = prices[place]
            better = price + (target[place] - sum(map(mul, line, prices))) / line[place]
            prices[place] = max(0.0, better)
            moved = moved or abs(prices[place] - price) > 1e-7 * price
        if not moved:
            break
    return prices
