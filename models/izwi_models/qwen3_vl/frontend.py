"""Qwen3-VL for API servers: conversations with images to requests, and answers to text."""

from __future__ import annotations

from pathlib import Path

from izwi.errors import InvalidRequest
from izwi.inputs.chat import ChatInput
from izwi.inputs.images import ChatImage, ImageSizing
from izwi.model.capability import Capability
from izwi.request.request import EncodeInput, Request
from izwi_models.qwen3.stop_ids import read_stop_ids
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_chat.answer import ChatReader
from izwi_models.qwen3_chat.config import GenerationConfig, read_generation_config
from izwi_models.qwen3_chat.frontend import ChatPreparation
from izwi_models.qwen3_chat.template import ChatTemplate, EncodedChat, read_template
from izwi_models.qwen3_vl.config import PixelConfig, VLConfig, read_config, read_pixel_config
from izwi_models.qwen3_vl.pixels import patches_of
from izwi_models.qwen3_vl.prompt import IMAGE, VLPrompt, place_images, prompt_of

# Defaults of the published generation_config.json, where the file lacks a key.
_GENERATION = GenerationConfig(temperature=0.7, top_p=0.8)


class Qwen3VLFrontend:
    """The frontend of one checkpoint. Implements `ChatFrontend` and `SeesImages`."""

    capabilities = (Capability.CHAT, Capability.SEE)

    def __init__(
        self,
        config: VLConfig,
        pixels: PixelConfig,
        generation: GenerationConfig,
        template: ChatTemplate,
        stop_ids: tuple[int, ...],
    ):
        self._config, self._pixels, self._template = config, pixels, template
        self._chat = ChatPreparation(config.text, generation, template, stop_ids)

    @property
    def max_positions(self) -> int:
        return self._config.text.max_position_embeddings

    @property
    def image_sizing(self) -> ImageSizing:
        """To what sizes images are scaled, before `prepare_chat`."""
        return self._pixels.sizing

    def prepare_chat(self, request_id: str, model: str, ask: ChatInput) -> Request:
        """Put a conversation into the template, and its images at their places.

        Raises:
            InvalidRequest: As `Qwen3ChatFrontend.prepare_chat`; or the template has no place for an
                image of its message.
            ContextTooLong: The conversation, with its images, leaves no room for an answer.
        """

        def prompt(chat: EncodedChat, most_calls: int) -> VLPrompt:
            images = tuple(map(self._encode_input, _images_of(ask)))
            return place_images(self._config, chat.ids, images, (chat.in_thought, most_calls))

        return self._chat.prepare(request_id, model, ask, prompt)

    def open_answer(self, request: Request) -> ChatReader:
        """Return a reader for the output of a request from `prepare_chat`."""
        template, prompt = self._template, prompt_of(request)
        return ChatReader(
            template.tokenizer, template.thought_ids, prompt.in_thought, prompt.most_calls
        )

    def _encode_input(self, image: ChatImage) -> EncodeInput:
        pixels, factor = image.pixels, self.image_sizing.factor
        if pixels is None or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise InvalidRequest("an image was not decoded", param="messages")
        if min(pixels.shape[:2]) < factor or any(side % factor for side in pixels.shape[:2]):
            raise InvalidRequest(
                f"an image must be scaled to multiples of {factor} pixels", param="messages"
            )
        return EncodeInput(IMAGE, patches_of(self._config.vision, pixels))


def load_frontend(folder: Path) -> Qwen3VLFrontend:
    """Read configuration, tokenizer and template.

    Raises:
        CheckpointError: A file or key is missing or wrong; it is named.
    """
    config = read_config(folder)
    pixels = read_pixel_config(folder, config)
    template = read_template(folder, QwenTokenizer(folder))
    stop_ids = read_stop_ids(folder, config.text.vocab_size)
    generation = read_generation_config(folder, _GENERATION)
    return Qwen3VLFrontend(config, pixels, generation, template, stop_ids)


def _images_of(ask: ChatInput) -> list[ChatImage]:
    return [image for message in ask.messages for image in message.images]
