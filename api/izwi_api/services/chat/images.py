"""Make the images of a conversation pixels: read data: URLs, fetch others, decode and scale."""

from __future__ import annotations

import asyncio
import base64
import binascii

from msgspec.structs import replace

from izwi.errors import InvalidImage, InvalidRequest, InvalidValue, TooLarge
from izwi.inputs.chat import ChatInput, ChatMessage, has_images
from izwi.inputs.images import ChatImage, ImageSizing
from izwi.model.frontend import ChatFrontend, SeesImages
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModel
from izwi_api.voices.reference_hosts import IMAGE, is_address

# Of one conversation.
MAX_IMAGES = 32


async def with_pixels(
    services: Services, model: ServedModel[ChatFrontend], ask: ChatInput
) -> ChatInput:
    """Return a conversation whose images are decoded, and scaled for a model.

    Raises:
        InvalidValue: The model cannot see.
        InvalidImage: An image is broken, or of no accepted kind.
        InvalidRequest: A URL may not be fetched; there are too many images.
        ReferenceNotFetched: An image could not be fetched.
        TooLarge: An image exceeds a limit.
        Overloaded: Too many images wait.
    """
    if not has_images(ask):
        return ask
    frontend = model.frontend
    if not isinstance(frontend, SeesImages):
        raise InvalidValue(f"model {model.name!r} cannot see images", param="messages")
    count = sum(len(message.images) for message in ask.messages)
    if count > MAX_IMAGES:
        raise TooLarge(
            f"the conversation has {count} images; at most {MAX_IMAGES} are accepted",
            param="messages",
        )
    reading = _Reading(services, frontend.image_sizing)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                [group.create_task(reading.read(place, image)) for image in message.images]
                for place, message in enumerate(ask.messages)
            ]
    except ExceptionGroup as failed:
        # one error is the cause; the other tasks were cancelled
        raise failed.exceptions[0] from None
    messages = tuple(
        _with_images(message, tuple(task.result() for task in read))
        for message, read in zip(ask.messages, tasks, strict=True)
    )
    return replace(ask, messages=messages)


class _Reading:
    """Reads the images of one conversation."""

    def __init__(self, services: Services, sizing: ImageSizing):
        self._services, self._sizing = services, sizing

    async def read(self, place: int, image: ChatImage) -> ChatImage:
        """Return an image with pixels, instead of its URL; errors name the message's place."""
        if image.pixels is not None:
            return image
        try:
            content = await self._content(image.url)
            sizing = self._sizing.for_detail(image.detail)
            pixels = await self._services.images.decode(content, sizing)
        except InvalidRequest as error:
            raise type(error)(f"messages[{place}]: {error}", param="messages") from error
        return replace(image, url="", pixels=pixels)

    async def _content(self, url: str) -> bytes:
        if is_address(url):
            return await self._services.references.fetch(url, IMAGE)
        limit_bytes = self._services.settings.max_reference_bytes
        return await asyncio.to_thread(_decode_data_url, url, limit_bytes)


def _decode_data_url(url: str, limit_bytes: int) -> bytes:
    head, comma, text = url.partition(",")
    if not (comma and head.startswith("data:image/") and head.endswith(";base64")):
        raise InvalidImage(
            "an image must be a URL, or a data: URL like data:image/png;base64,iVBORw0..."
        )
    if len(text) * 3 // 4 > limit_bytes + 2:
        raise TooLarge(f"an image is larger than {limit_bytes} bytes")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidImage("an image is not valid base64") from error


def _with_images(message: ChatMessage, images: tuple[ChatImage, ...]) -> ChatMessage:
    return replace(message, images=images) if images else message
