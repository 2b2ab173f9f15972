"""How the speakers of a live session are told apart: what a client sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from izwi.errors import InvalidRequest

KnownNames = Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=4)]
KnownReferences = Annotated[list[str], Meta(max_length=4)]


@dataclass(frozen=True, slots=True)
class SpeakerSetting:
    """How the speakers of a session are told apart.

    Attributes:
        names: Names of known speakers.
        references: A clip of each as a data: URL.
        threshold: Cosine below which two voices are different ones; None takes the default.
    """

    names: Sequence[str] = ()
    references: Sequence[str] = ()
    threshold: float | None = None

    def __post_init__(self) -> None:
        """Raise InvalidRequest if names and references are not pairs."""
        if len(self.names) != len(self.references):
            raise InvalidRequest(
                f"known_speaker_names has {len(self.names)} entries and known_speaker_references "
                f"{len(self.references)}; each name needs one reference",
                param="known_speaker_references",
            )
        if len(set(self.names)) < len(self.names):
            raise InvalidRequest("two known speakers have one name", param="known_speaker_names")


def asked_speakers(*, is_asked: bool, setting: SpeakerSetting) -> SpeakerSetting | None:
    """Return how speakers are told apart; None if they are not.

    Raises:
        InvalidRequest: Speakers are known and not asked for.
    """
    if is_asked:
        return setting
    if setting.names or setting.references:
        raise InvalidRequest("known speakers need speakers: true", param="speakers")
    return None
