"""The body of POST /v1/audio/speech/batch: texts, and the keys of a single speech for all of them.

Clients of vLLM-Omni's endpoint of this name find its keys here, and its default format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from izwi.errors import InvalidRequest
from izwi_api.schemas.speech import SpeechBody

MAX_ITEMS = 32


class BatchItem(SpeechBody):
    """One text of a batch. Its answer is a whole file, so there is nothing to stream."""

    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "wav"
    stream_format: Literal["audio"] = "audio"


class SpeechBatchBody(BatchItem):
    """A batch. What stands beside `items` holds for every item that does not say otherwise.

    Attributes:
        model: "" for the first model that speaks.
        input: Of no use here; every item has its own.
        items: Bodies of `BatchItem`, checked one by one: a bad one does not fail the others.
    """

    model: str = ""
    input: Literal[""] = ""
    items: list[object] = Field(min_length=1, max_length=MAX_ITEMS)


def parse_batch(values: Mapping[str, object]) -> SpeechBatchBody:
    """Read a batch. Its defaults are top-level keys, or in an object `defaults`, or both.

    Raises:
        InvalidRequest: `defaults` is not an object.
        ValidationError: A default or the list cannot be used.
    """
    own = {key: value for key, value in values.items() if key != "defaults"}
    defaults = values.get("defaults", {})
    if not isinstance(defaults, dict):
        raise InvalidRequest("defaults must be an object", param="defaults")
    given = {key: value for key, value in defaults.items() if value is not None}
    return SpeechBatchBody.model_validate(given | own)


def parse_item(batch: SpeechBatchBody, model_name: str, item: object) -> BatchItem:
    """Fill one item up with the batch's defaults.

    Args:
        batch: Which it belongs to.
        model_name: Who speaks where neither says it.
        item: As it came.

    Raises:
        InvalidRequest: It is not an object.
        ValidationError: A key of it cannot be used.
    """
    if not isinstance(item, dict):
        raise InvalidRequest("an item must be an object", param="items")
    defaults = batch.model_dump(exclude_unset=True, exclude={"items", "input"})
    own = {key: value for key, value in item.items() if value is not None}
    return BatchItem.model_validate({"model": model_name} | defaults | own)
