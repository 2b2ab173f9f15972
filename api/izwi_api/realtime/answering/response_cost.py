"""The tokens of one response, as its `usage` reports them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ResponseCost:
    """Token counts of a response.

    Attributes:
        num_read: Tokens of the prompt.
        num_written: Text tokens that were generated.
        num_frames: Audio frames that were generated.
    """

    num_read: int = 0
    num_written: int = 0
    num_frames: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the counts as JSON for the client."""
        num_out = self.num_written + self.num_frames
        return {
            "total_tokens": self.num_read + num_out,
            "input_tokens": self.num_read,
            "output_tokens": num_out,
            "input_token_details": {
                "text_tokens": self.num_read,
                "audio_tokens": 0,
                "cached_tokens": 0,
            },
            "output_token_details": {
                "text_tokens": self.num_written,
                "audio_tokens": self.num_frames,
            },
        }
