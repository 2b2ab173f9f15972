"""Whatever API servers and engine say to each other arrives as it was, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from typing_extensions import TypeAliasType

from izwi import errors
from izwi.chat import ChatInput, ChatMessage, Role
from izwi.errors import ContextTooLong, InvalidRequest, IzwiError, Overloaded
from izwi.inputs import (
    AlignmentInput,
    ReferenceClip,
    SpeechInput,
    TextMode,
    TranscriptionInput,
    VoicePrompt,
)
from izwi.registry import Registry, families
from izwi.request import Chunk, EncodeInput, Reason, Request, SamplingParams
from izwi.weightless import WeightlessBackend
from izwi_api.http.limits import RateLimited
from izwi_api.serve import wire
from izwi_api.serve.packing import EngineFault, Unpacker, pack, pack_error, unpack_error
from tests.engine.toy import ToyPrompt
from tests.models.tiny_aligner import write_tiny_aligner
from tests.models.tiny_asr import write_tiny_asr
from tests.models.tiny_chat import write_tiny_chat
from tests.models.tiny_tts import write_tiny_tts

CODEC = wire.RequestCodec()
NOISE = np.random.default_rng(3).standard_normal(48_000).astype(np.float32) * 0.1


def assert_same(got, sent, where="it"):
    assert type(got) is type(sent), where
    if isinstance(sent, np.ndarray):
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape), where
        assert got.tobytes() == sent.tobytes(), where
    elif is_dataclass(sent):
        for field in fields(sent):
            name = field.name
            assert_same(getattr(got, name), getattr(sent, name), f"{where}.{name}")
    elif isinstance(sent, tuple):
        assert len(got) == len(sent), where
        for one, other in zip(got, sent, strict=True):
            assert_same(one, other, where)
    elif isinstance(sent, BaseException):
        assert (str(got), vars(got)) == (str(sent), vars(sent)), where
    else:
        assert got == sent, where


def over(frames):
    """Frames as they come out of a socket."""
    return [memoryview(bytes(frame)) for frame in frames]


def crossed(request, codec=CODEC, **options):
    frames = over(codec.submit("api_server", [request], **options))
    envelope = wire.decode_command(frames[0])
    assert envelope.api_server == "api_server"
    (back,) = codec.requests(envelope.command, frames)
    return back


# -- requests ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    root = tmp_path_factory.mktemp("described")
    registry = Registry(WeightlessBackend())
    for kind in ("custom_voice", "base", "voice_design"):
        (root / kind).mkdir()
        registry.load(str(write_tiny_tts(root / kind, kind)))
    registry.load(str(write_tiny_asr(root / "asr")))
    registry.load(str(write_tiny_aligner(root / "aligner")))
    registry.load(str(write_tiny_chat(root / "chat")))
    return registry


def speech_requests(registry):
    named, base = registry.speech("custom_voice"), registry.speech("base")
    clip = ReferenceClip(NOISE, "la la la")
    hidden = base._config.talker_config.hidden_size
    groups = base._config.talker_config.num_code_groups
    voice = VoicePrompt(np.ones(hidden, np.float32), np.ones((12, groups), np.int64), "la la la")
    for ask in (
        SpeechInput("Hello there, my friend.", voice="ryan", seed=2**62, temperature=0.0),
        SpeechInput("Hello.", text_mode=TextMode.STREAMING, top_p=0.5, max_new_tokens=9),
    ):
        yield named.prepare_speech("speech-1", "custom_voice", ask)
    for source in (clip, replace(clip, text=None), voice, replace(voice, codes=None, text=None)):
        ask = SpeechInput("Hello there.", voice=source, language="english")
        yield base.prepare_speech("speech-2", "base", ask)
    yield base.prepare_voice("voice-1", "base", NOISE, "la la la")
    yield registry.speech("voice_design").prepare_speech(
        "speech-3", "voice_design", SpeechInput("Hello.", instruct="A calm old man.")
    )


def written_requests(registry):
    stream = registry.speech("custom_voice").text_stream(
        "written", "custom_voice", SpeechInput("", max_new_tokens=40)
    )
    parts = [*stream.write("Hello there, my friend. How are you?"), *stream.close()]
    return [part.request for part in parts if part.request is not None]


def heard_requests(registry):
    listener = registry.transcription("asr")
    for seconds in (0.5, 3.0):
        samples = np.resize(NOISE, int(seconds * 16_000))
        ask = TranscriptionInput(samples, "en", "context", logprobs=True)
        yield listener.prepare_transcription("heard-1", "asr", ask)
    stream = listener.open_stream(context="names", chunk_s=0.5)
    stream.write(np.resize(NOISE, 32_000))
    stream.close()
    while (step := stream.next_step()) is not None:
        yield listener.prepare_stream_step("live-1", "asr", stream, step)
        stream.take(step, [])
    aligner = registry.model("aligner")
    ask = AlignmentInput(np.resize(NOISE, 32_000), "one two, three")
    yield aligner.prepare_alignment("aligned-1", "aligner", ask)


def chat_requests(registry):
    messages = (ChatMessage(Role.USER, "hello"), ChatMessage(Role.ASSISTANT, "yes", "he greets"))
    ask = ChatInput((*messages, messages[0]), thinking=True, temperature=0.3)
    yield registry.chat("chat").prepare_chat("chat-1", "chat", ask)


def test_all_that_the_models_prepare_arrives_as_it_was(registry):
    sources = (speech_requests, written_requests, heard_requests, chat_requests)
    made = [request for source in sources for request in source(registry)]
    assert len(made) >= 14
    assert any(request.open_input for request in made)
    assert any(request.output_positions for request in made)
    assert any(request.encode_only for request in made)
    known = {cls for same in families().values() for family in same for cls in family.prompts}
    assert {type(request.prompt) for request in made} == known
    for request in made:
        assert_same(crossed(request, with_ask=True), request)
        plain = crossed(request)
        assert_same(replace(plain, ask=None), replace(request, ask=None))
        if not request.open_input:
            assert plain.ask is None


def test_limits_of_open_texts_go_along_but_not_their_clips(registry):
    (request,) = written_requests(registry)[:1]
    clip = ReferenceClip(NOISE, "la la la")
    request = replace(request, ask=replace(request.ask, voice=clip))
    assert crossed(request).ask.max_new_tokens == 40
    assert crossed(request).ask.voice is None


@st.composite
def toys(draw):
    ids = st.lists(st.integers(0, 2**40), max_size=20).map(tuple)
    values = hnp.arrays(np.float32, hnp.array_shapes(min_side=0, max_dims=3, max_side=40))
    pieces = st.lists(st.builds(EncodeInput, st.text(), values), max_size=3).map(tuple)
    params = st.builds(
        SamplingParams, st.floats(0, 2), st.integers(0, 99), st.floats(0, 1), st.floats(0.5, 2)
    )
    return draw(
        st.builds(
            Request,
            st.text(),
            st.text(),
            st.builds(ToyPrompt, ids, pieces, ids),
            params,
            params,
            seed=st.integers(0, 2**63 - 1),
            max_entries=st.integers(1, 2**31),
            stop_ids=ids,
            output_positions=ids,
            encode_only=st.booleans(),
            open_input=st.booleans(),
            priority=st.integers(-5, 5),
            listener=st.text(),
        )
    )


@settings(max_examples=100)
@given(toys())
def test_any_request_arrives_as_it_was(request):
    assert_same(crossed(request, wire.RequestCodec([ToyPrompt])), request)


def test_classes_that_nobody_listed_do_not_come_back():
    @dataclass(frozen=True)
    class Stranger:
        num_positions: int = 1
        encode_inputs: tuple[EncodeInput, ...] = ()

    with pytest.raises(ValueError, match="no class that may be sent"):
        crossed(Request("a", "b", Stranger()))
    namesake = dataclass(type("ToyPrompt", (), {"__annotations__": {"a": int}}))
    with pytest.raises(ValueError, match="two classes"):
        Unpacker([ToyPrompt, namesake])


_Named = TypeAliasType("_Named", np.ndarray)  # as NDArray is from Python 3.12 on


@dataclass(frozen=True)
class _UnderAName:
    one: _Named
    other: _Named | None = None


def test_arrays_whose_annotation_has_a_name_arrive():
    sent = _UnderAName(np.arange(3), np.ones(2))
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(pack(sent, [b""])))
    assert_same(Unpacker([_UnderAName]).unpack(packed, []), sent)


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", "7"), ("max_entries", 1.5), ("stop_ids", [["a"]]), ("prompt", None), ("ask", 3)],
)
def test_what_does_not_fit_its_annotation_is_refused(field, value):
    packed = pack(Request("a", "b", ToyPrompt((1, 2))), [])
    packed[1 + [f.name for f in fields(Request)].index(field)] = value
    with pytest.raises(ValueError):
        Unpacker([Request, ToyPrompt]).unpack(packed, [])


def test_arrays_that_lie_about_their_size_are_refused():
    frames = []
    packed = pack(EncodeInput("clip", np.ones((40, 40), np.float32)), frames)
    with pytest.raises(ValueError, match="does not fill"):
        Unpacker([EncodeInput]).unpack(msgspec.to_builtins(packed), [frames[0][:-4]])


# -- chunks --------------------------------------------------------------------------------------
@st.composite
def chunks(draw):
    arrays = hnp.arrays(
        draw(st.sampled_from([np.float32, np.int64, np.float16])),
        hnp.array_shapes(min_side=0, max_dims=3, max_side=50),
    )
    floats = hnp.arrays(np.float32, st.integers(0, 4000))
    return Chunk(
        draw(st.text()),
        draw(hnp.arrays(np.int64, hnp.array_shapes(min_dims=2, max_dims=2, min_side=0))),
        draw(st.none() | floats),
        tuple(draw(st.lists(arrays, max_size=3))),
        draw(st.none() | st.sampled_from(Reason)),
        draw(st.none() | st.sampled_from(ERRORS)),
        draw(st.none() | floats),
    )


ERRORS = (
    IzwiError("broken"),
    Overloaded("full", retry_after_s=7),
    InvalidRequest("no", param="input"),
    ContextTooLong("too long", param="messages"),
)


@settings(max_examples=100)
@given(st.lists(chunks(), max_size=4))
def test_any_chunks_arrive_as_they_were(sent):
    frames = over(wire.encode_chunks(sent))
    reported = wire.decode_engine_message(frames[0])
    assert len(reported.chunks) == len(sent)
    for packed, chunk in zip(reported.chunks, sent, strict=True):
        got = wire.unpack_chunk(packed, frames)
        for name, one, other in zip(Chunk._fields, got, chunk, strict=True):
            assert_same(one, other, name)


def test_every_error_of_the_tree_comes_back_as_what_it_was():
    for cls in vars(errors).values():
        if isinstance(cls, type) and issubclass(cls, IzwiError):
            assert_same(unpack_error(pack_error(cls("because"))), cls("because"))
    # an API server's own
    limited = unpack_error(pack_error(RateLimited("slowly", retry_after_s=3)))
    assert type(limited) is InvalidRequest
    assert str(limited) == "slowly"
    fault = unpack_error(pack_error(RuntimeError("a bug")))
    assert isinstance(fault, EngineFault)
    assert "RuntimeError: a bug" in str(fault)
