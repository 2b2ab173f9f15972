"""The conversation of a session: its items, changes by the client, and conversion to a prompt."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
import numpy as np
from msgspec import Meta, Struct

from izwi.arrays import Float32
from izwi.inputs.chat import ChatMessage, Role, ToolCall
from izwi.inputs.conversation import AnswerLog
from izwi.inputs.images import ChatImage
from izwi_api.realtime.protocol.errors import EventError, describe
from izwi_api.realtime.protocol.formats import InputDecoder, WireFormat
from izwi_api.realtime.protocol.speaking_rate import CHARACTERS_PER_S
from izwi_api.schemas.chat_messages import image_of
from izwi_api.services.speech.text_shares import cut_text

# Audio kept for `conversation.item.retrieve`; the oldest items lose theirs first.
_MAX_KEPT_BYTES = 16 << 20
_MAX_ITEMS = 4096
# Parts of all items together: each item that is added is compared with all of them.
_MAX_PARTS = 8192
# For all items together; more than any model's context.
_MAX_CHARACTERS = 4 << 20
# Of the URLs of all images, most of which are the images themselves.
_MAX_IMAGE_CHARACTERS = 32 << 20
_Text = Annotated[str, Meta(max_length=1 << 20)]
_Url = Annotated[str, Meta(min_length=1, max_length=16 << 20)]
_Id = Annotated[str, Meta(min_length=1, max_length=64)]


@dataclass(slots=True)
class Content:
    """One part of a message's content.

    Attributes:
        kind: input_text, input_audio, input_image, output_text or output_audio.
        text: The text, or the transcript of the audio ("" until it is known).
        audio: Bytes in the format that the session had when it arrived; None if not kept.
        audio_ms: Duration of the audio.
        played_ms: The part of an answer that was played; None means all of it.
        characters_per_s: Assumed speaking rate, while the audio is not complete.
        is_transcribed: Whether `text` has what is said; False for audio that a client inserted.
        wire: The format of a user's `audio`.
        samples: The same audio, (n,) float32 at 16 kHz, once a model has processed it.
        entries: The log entries of an answer from a speech-to-speech model.
        frame_ms: Duration of one of its frames.
        image: An image, whose place among the text is not known yet.
    """

    kind: str
    text: str = ""
    audio: bytes | bytearray | None = None
    audio_ms: float = 0.0
    played_ms: float | None = None
    characters_per_s: float = CHARACTERS_PER_S
    is_complete: bool = True
    is_transcribed: bool = True
    wire: WireFormat | None = None
    samples: Float32 | None = None
    entries: AnswerLog = ()
    frame_ms: float = 0.0
    image: ChatImage | None = None

    def add_audio(self, data: bytes) -> None:
        """Append audio."""
        if isinstance(self.audio, bytearray):
            self.audio += data
        else:
            self.audio = bytearray((self.audio or b"") + data)

    def read_samples(self) -> Float32:
        """Return a user's audio as samples at 16 kHz: (n,); none if it is not kept."""
        if self.samples is None:
            if self.audio is None or self.wire is None:
                return np.zeros(0, np.float32)
            decoder = InputDecoder(self.wire)
            self.samples = np.concatenate([decoder.write(bytes(self.audio)), decoder.finish()])
        return self.samples

    @property
    def played_text(self) -> str:
        """Return the part of an answer's text that was played."""
        if self.played_ms is None:
            return self.text
        said_ms = len(self.text) / self.characters_per_s * 1000
        whole_ms = self.audio_ms if self.is_complete else max(self.audio_ms, said_ms)
        if whole_ms <= 0.0:
            return ""
        share = min(1.0, self.played_ms / whole_ms)
        ((start, stop), _) = cut_text(self.text, [share])
        return self.text[start:stop].rstrip()


def new_item_id() -> str:
    """Return a new id for an item whose client gave none."""
    return f"item_{uuid4().hex[:24]}"


@dataclass(slots=True)
class Item:
    """A message, a function call, or the output of one.

    `is_left_out`: the conversation outgrew the model's context, and prompts are without this item.
    """

    kind: Literal["message", "function_call", "function_call_output"]
    item_id: str = field(default_factory=new_item_id)
    role: str = ""
    content: list[Content] = field(default_factory=list)
    status: str = "completed"
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str = ""
    is_left_out: bool = False

    @property
    def num_characters(self) -> int:
        """Return the number of characters in its text."""
        own = len(self.name) + len(self.arguments) + len(self.output)
        return own + sum(len(part.text) for part in self.content)

    @property
    def num_image_characters(self) -> int:
        """Return the number of characters in the URLs of its images."""
        return sum(len(part.image.url) for part in self.content if part.image is not None)

    def as_json(self, *, with_audio: bool = False) -> dict[str, Any]:
        """Return the item as JSON for the client."""
        made: dict[str, Any] = {
            "id": self.item_id,
            "object": "realtime.item",
            "type": self.kind,
            "status": self.status,
        }
        if self.kind == "message":
            parts = [_part_json(part, with_audio=with_audio) for part in self.content]
            return made | {"role": self.role, "content": parts}
        made["call_id"] = self.call_id
        if self.kind == "function_call":
            return made | {"name": self.name, "arguments": self.arguments}
        return made | {"output": self.output}


class _ContentIn(Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal[
        "input_text", "input_audio", "input_image", "output_text", "output_audio", "text", "audio"
    ]
    text: _Text | None = None
    audio: bytes | None = None
    transcript: _Text | None = None
    image_url: _Url | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


class _ItemIn(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    id: _Id | None = None
    object: Literal["realtime.item"] | None = None
    status: Literal["completed", "incomplete", "in_progress"] | None = None


class _MessageIn(_ItemIn, tag="message"):
    role: Literal["system", "user", "assistant"]
    content: Annotated[list[_ContentIn], Meta(max_length=64)]


class _CallIn(_ItemIn, tag="function_call"):
    name: _Text
    arguments: _Text
    call_id: _Id | None = None


class _OutputIn(_ItemIn, tag="function_call_output"):
    call_id: _Id
    output: _Text


def parse_item(value: dict[str, Any], wire: WireFormat) -> Item:
    """Parse an item from a client, whose audio has this format. Raises EventError."""
    try:
        given = msgspec.convert(value, _MessageIn | _CallIn | _OutputIn)
    except msgspec.ValidationError as error:
        message, param, code = describe(error, "item")
        raise EventError(message, code, param=param) from error
    item = Item("message")
    if given.id is not None:
        item.item_id = given.id
    match given:
        case _MessageIn():
            item.role = given.role
            item.content = [_content_of(part, given.role, wire) for part in given.content]
        case _CallIn():
            item.kind, item.name, item.arguments = "function_call", given.name, given.arguments
            item.call_id = given.call_id or f"call_{uuid4().hex[:24]}"
        case _OutputIn():
            item.kind = "function_call_output"
            item.call_id, item.output = given.call_id, given.output
    return item


class Conversation:
    """The items of a session, in order."""

    def __init__(self) -> None:
        self.conversation_id = f"conv_{uuid4().hex[:24]}"
        self.items: list[Item] = []

    @property
    def remembered(self) -> list[Item]:
        """Return the items that go into prompts: all, until they outgrow the model's context."""
        return [item for item in self.items if not item.is_left_out]

    @property
    def _num_parts(self) -> int:
        return sum(len(item.content) for item in self.items)

    def add(self, item: Item, previous_item_id: str | None = None) -> str | None:
        """Insert an item after another one, or at the end; return the id of the item before it.

        Raises:
            EventError: The id exists already, the previous item is unknown, there are too many
                items, or their text is too long.
        """
        if self._find(item.item_id) is not None:
            raise EventError(
                f"an item with the id {item.item_id!r} exists",
                "item_create_duplicate_item_id",
                param="item.id",
            )
        if len(self.items) >= _MAX_ITEMS:
            raise EventError(f"a conversation has at most {_MAX_ITEMS} items", "too_many_items")
        if self._num_parts + len(item.content) > _MAX_PARTS:
            raise EventError(
                f"the contents of a conversation have at most {_MAX_PARTS} parts: delete items "
                "first",
                "too_many_items",
                param="item.content",
            )
        if item.num_characters:
            num_characters = sum(other.num_characters for other in (*self.items, item))
            if num_characters > _MAX_CHARACTERS:
                raise EventError(
                    f"the conversation would have {num_characters} characters; at most "
                    f"{_MAX_CHARACTERS} are kept: delete items first",
                    "conversation_too_long",
                    param="item",
                )
        if item.num_image_characters:
            total = sum(other.num_image_characters for other in (*self.items, item))
            if total > _MAX_IMAGE_CHARACTERS:
                raise EventError(
                    f"the conversation would have {total} characters of images; at most "
                    f"{_MAX_IMAGE_CHARACTERS} are kept: delete items first",
                    "conversation_too_long",
                    param="item",
                )
        place = len(self.items)
        if previous_item_id == "root":
            place = 0
        elif previous_item_id is not None:
            place = 1 + self._place(previous_item_id, "item_create_invalid_previous_item_id")
        self.items.insert(place, item)
        self._drop_old_audio()
        return self.items[place - 1].item_id if place else None

    def append(self, item: Item) -> str | None:
        """Append an item of the session's own; return the id of the item before it.

        The client cannot be refused what it said. If there are too many items, the oldest go.
        """
        while len(self.items) >= _MAX_ITEMS or self._num_parts + len(item.content) > _MAX_PARTS:
            del self.items[0]
        return self.add(item)

    def get(self, item_id: str, code: str) -> Item:
        """Return an item. Raises EventError with this code if it is unknown."""
        return self.items[self._place(item_id, code)]

    def delete(self, item_id: str) -> None:
        """Delete an item. Raises EventError."""
        del self.items[self._place(item_id, "item_delete_invalid_item_id")]

    def truncate(self, item_id: str, content_index: int, audio_end_ms: int) -> None:
        """Truncate an answer to the part that was played. Raises EventError."""
        item = self.get(item_id, "item_truncate_invalid_item_id")
        if not 0 <= content_index < len(item.content):
            raise EventError(
                f"the item has {len(item.content)} parts", "invalid_value", param="content_index"
            )
        content = item.content[content_index]
        if content.kind != "output_audio":
            raise EventError(
                "only the audio of an assistant's message can be truncated",
                "invalid_value",
                param="item_id",
            )
        if not 0 <= audio_end_ms <= content.audio_ms + 1:
            raise EventError(
                f"audio content of {content.audio_ms:.0f} ms is shorter than {audio_end_ms} ms"
                if audio_end_ms > 0
                else "audio_end_ms must not be negative",
                "invalid_value",
                param="audio_end_ms",
            )
        content.played_ms = audio_end_ms

    def _place(self, item_id: str, code: str) -> int:
        place = self._find(item_id)
        if place is None:
            shown = item_id[:64]
            raise EventError(f"no item has the id {shown!r}", code, param="item_id")
        return place

    def _find(self, item_id: str) -> int | None:
        return next((n for n, item in enumerate(self.items) if item.item_id == item_id), None)

    def _drop_old_audio(self) -> None:
        room = _MAX_KEPT_BYTES
        for item in reversed(self.items):
            for content in item.content:
                room -= len(content.audio or b"")
                if room < 0:
                    content.audio = content.samples = None


def chat_messages(items: Sequence[Item], instructions: str) -> tuple[ChatMessage, ...]:
    """Convert items to chat messages. The unplayed part of an answer is left out.

    Function calls after an assistant's message become part of that message. Spoken turns with
    nothing of an answer heard between them become one message, so that none is left unanswered; so
    do an image, and what the user says or writes about it.
    """
    messages = [ChatMessage(Role.SYSTEM, instructions)] if instructions else []
    was_spoken = False
    for item in items:
        is_spoken = item.role == "user" and any(p.kind == "input_audio" for p in item.content)
        if item.kind == "function_call_output":
            messages.append(ChatMessage(Role.TOOL, item.output, call_id=item.call_id))
        elif item.kind == "function_call":
            call = ToolCall(item.call_id, item.name, item.arguments)
            content: str = ""
            calls: tuple[ToolCall, ...] = ()
            if messages and messages[-1].role is Role.ASSISTANT:
                last = messages.pop()
                content, calls = last.content, last.tool_calls
            messages.append(ChatMessage(Role.ASSISTANT, content, tool_calls=(*calls, call)))
        else:
            text, images = _content_text(item.content)
            if not text and item.role == "assistant":
                continue
            if (is_spoken and was_spoken) or (item.role == "user" and _only_shows(messages)):
                last = messages.pop()
                before = f"{last.content}\n" if last.content and text else last.content
                moved = (msgspec.structs.replace(i, at=i.at + len(before)) for i in images)
                text, images = before + text, (*last.images, *moved)
            messages.append(ChatMessage(Role(item.role), text, images=images))
        was_spoken = is_spoken
    # a client may let the model speak first
    return tuple(messages) or (ChatMessage(Role.USER, ""),)


def _only_shows(messages: Sequence[ChatMessage]) -> bool:
    """Return whether the last message has images of the user without a word."""
    last = messages[-1] if messages else None
    return last is not None and bool(last.images) and not last.content.strip()


def _content_text(content: Sequence[Content]) -> tuple[str, tuple[ChatImage, ...]]:
    """Return the text of a message's parts, a line each, and images at their places in it."""
    text, images = "", []
    for part in content:
        if part.image is not None:
            images.append(msgspec.structs.replace(part.image, at=len(text)))
        elif part.played_text:
            text += ("\n" if text else "") + part.played_text
    return text, tuple(images)


def _content_of(part: _ContentIn, role: str, wire: WireFormat) -> Content:
    kind = part.type
    if kind in ("text", "audio"):
        kind = f"output_{kind}" if role == "assistant" else f"input_{kind}"  # type: ignore[assignment]
    if kind.startswith("output") != (role == "assistant"):
        raise EventError(
            f"a message of the role {role!r} has no content of the type {part.type!r}",
            "invalid_value",
            param="item.content",
        )
    if kind == "input_image":
        return Content(kind, image=_image_of(part, role))
    text = part.transcript if kind.endswith("audio") else part.text
    if kind.endswith("text") and text is None:
        raise EventError("text is missing", "missing_required_parameter", param="item.content")
    content = Content(kind, text or "", part.audio)
    if kind == "input_audio" and part.audio is not None:
        content.wire, content.audio_ms = wire, wire.duration_ms(len(part.audio))
        content.is_transcribed = text is not None
    return content


def _image_of(part: _ContentIn, role: str) -> ChatImage:
    if role != "user":
        raise EventError("only the user shows images", "invalid_value", param="item.content")
    if part.image_url is None:
        raise EventError("image_url is missing", "missing_required_parameter", param="item.content")
    return image_of({"url": part.image_url, "detail": part.detail}, 0)


def _part_json(part: Content, *, with_audio: bool) -> dict[str, Any]:
    if part.image is not None:
        shown = {"image_url": part.image.url} if with_audio else {}
        return {"type": part.kind, "detail": str(part.image.detail), **shown}
    if part.kind.endswith("text"):
        return {"type": part.kind, "text": part.text}
    made: dict[str, Any] = {"type": part.kind, "transcript": part.played_text or None}
    if with_audio and part.audio is not None:
        audio = part.audio
        if part.played_ms is not None and part.audio_ms:
            # whole 16-bit samples
            size = int(len(audio) * min(1.0, part.played_ms / part.audio_ms))
            audio = audio[: size - size % 2]
        made["audio"] = base64.b64encode(audio).decode()
    return made
