"""The body of POST /v1/audio/speech/batch: texts, and the keys of a single speech for all of them.

Keys and default format are those of vLLM-Omni's endpoint of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from izwi.errors import InvalidRequest
from izwi_api.schemas.speech import OnlyFalse, SpeechBody

MAX_ITEMS = 32


class BatchItem(SpeechBody):
    """One text of a batch. Its result is a complete file, so streaming options do not apply."""

    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "wav"
    stream_format: Literal["audio"] = "audio"
    stream: OnlyFalse | None = None


class SpeechBatchBody(BatchItem):
    """A batch. Keys beside `items` are defaults for all items.

    Attributes:
        model: "" selects the first speech model.
        input: Unused; every item has its own.
        items: Bodies of `BatchItem`, validated separately: an invalid one does not fail the others.
    """

    model: str = ""
    input: Literal[""] = ""
    items: list[object] = Field(min_length=1, max_length=MAX_ITEMS)


def parse_batch(values: Mapping[str, object]) -> SpeechBatchBody:
    """Parse a batch. Defaults are top-level keys, keys of an object `defaults`, or both.

    Raises:
        InvalidRequest: `defaults` is not an object.
        ValidationError: A default or the list is invalid.
    """
    own = {key: value for key, value in values.items() if key != "defaults"}
    defaults = values.get("defaults", {})
    if not isinstance(defaults, dict):
        raise InvalidRequest("defaults must be an object", param="defaults")
    given = {key: value for key, value in defaults.items() if value is not None}
    return SpeechBatchBody.model_validate(given | own)


def parse_item(batch: SpeechBatchBody, model_name: str, item: object) -> BatchItem:
    """Parse one item, with the batch's defaults.

    Args:
        batch: The batch of the item.
        model_name: The speech model if neither names one.
        item: The item as received.

    Raises:
        InvalidRequest: The item is not an object.
        ValidationError: A key of the item is invalid.
    """
    if not isinstance(item, dict):
        raise InvalidRequest("an item must be an object", param="items")
    defaults = batch.model_dump(exclude_unset=True, exclude={"items", "input"})
    own = {key: value for key, value in item.items() if value is not None}
    return BatchItem.model_validate({"model": model_name} | defaults | own)
