"""Images that a server draws."""

from __future__ import annotations

from base64 import b64decode
from typing import TypedDict

from izwi.errors import EngineStopped
from izwi_api.client.connection import Fields, Requests

_GENERATIONS = "/v1/images/generations"


class DrawOptions(TypedDict, total=False):
    """Options of images. The server or the model chooses those that are not given.

    Attributes:
        model: Name of the model that draws.
        n: Number of images.
        size: Like "1024x1024", in pixels.
        quality: "low", "medium" or "high": how many steps.
        steps: Number of steps, instead of `quality`.
        seed: The same seed draws the same image.
        output_format: "png", "jpeg" or "webp".
    """

    model: str | None
    n: int
    size: str | None
    quality: str | None
    steps: int | None
    seed: int | None
    output_format: str


async def request_images(requests: Requests, fields: Fields) -> list[bytes]:
    """Have images drawn, and return their files.

    Args:
        requests: The server.
        fields: The fields of POST /v1/images/generations.

    Raises:
        IzwiError: As the server reported it; EngineStopped if the connection broke.
    """
    answer = await requests.post(_GENERATIONS, fields)
    try:
        return [b64decode(entry["b64_json"]) for entry in answer["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise EngineStopped("the server's answer has no images") from error
