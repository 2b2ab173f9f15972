"""The body of POST /v1/models/pull. An unknown key is an error."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class PullBody(BaseModel):
    """The model to download."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str = Field(min_length=1)
