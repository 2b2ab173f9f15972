"""Earlier spoken answers by id, so that a client sends an id back instead of the sound.

They are kept as the ids that the model made, 24 KB for a minute, for an hour, in bounded memory.
Knows no HTTP.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from izwi.conversation import Answer
from izwi.errors import InvalidRequest

KEPT_S = 3600.0
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """One answer.

    Attributes:
        owner: Whose it is: the API key's name, or empty.
        model: Which made it; another one cannot read it.
        rows: (entries, codebooks) int32, -1 behind shorter entries.
        expires_at: When it is forgotten, in seconds of the clock.
    """

    owner: str
    model: str
    rows: npt.NDArray[np.int32]
    expires_at: float

    @property
    def entries(self) -> Answer:
        """Its log."""
        return tuple(tuple(i for i in row if i >= 0) for row in self.rows.tolist())


class KeptAnswers:
    """Answers of the last hour; the oldest go first where there is no room."""

    def __init__(
        self,
        *,
        kept_s: float = KEPT_S,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ):
        self._kept_s, self._max_bytes, self._clock = kept_s, max_bytes, clock
        self._answers: OrderedDict[str, KeptAnswer] = OrderedDict()
        self.num_bytes = 0

    @staticmethod
    def new_id() -> str:
        """Return an id that nobody can guess."""
        return f"audio_{secrets.token_hex(16)}"

    def keep(
        self, owner: str, model: str, entries: Answer, name: str | None = None
    ) -> tuple[str, int]:
        """Keep an answer.

        Args:
            owner: Whose it is.
            model: Which model's.
            entries: Its log.
            name: One of `new_id`; None takes a new one.

        Returns:
            Its id, and when it expires, in seconds since 1970.
        """
        width = max(map(len, entries), default=1)
        rows = np.full((len(entries), width), -1, np.int32)
        for row, ids in zip(rows, entries, strict=True):
            row[: len(ids)] = ids
        now = self._clock()
        answer = KeptAnswer(owner, model, rows, now + self._kept_s)
        name = self.new_id() if name is None else name
        self._answers[name] = answer
        self.num_bytes += rows.nbytes
        self._drop(now)
        return name, int(answer.expires_at)

    def find(self, owner: str, model: str, name: str) -> Answer:
        """Return the log of an answer.

        Raises:
            InvalidRequest: There is none of that id: it never was, has expired, is another
                caller's, or of another model.
        """
        self._drop(self._clock())
        answer = self._answers.get(name)
        if answer is None or answer.owner != owner:
            raise InvalidRequest(
                f"there is no answer {name[:64]!r}, or it has expired: answers are kept for "
                f"{self._kept_s / 60:g} minutes; send its transcript as text instead",
                param="messages",
            )
        if answer.model != model:
            raise InvalidRequest(
                f"the answer {name[:64]!r} was given by the model {answer.model!r}",
                param="messages",
            )
        return answer.entries

    def _drop(self, now: float) -> None:
        """Forget what has expired, and the oldest where there is no room: all live as long."""
        while self._answers:
            name, oldest = next(iter(self._answers.items()))
            if oldest.expires_at > now and self.num_bytes <= self._max_bytes:
                return
            del self._answers[name]
            self.num_bytes -= oldest.rows.nbytes
