"""All messages between API servers and engine arrive unchanged, bit for bit."""

from __future__ import annotations

from contextlib import suppress
from math import inf

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msgspec import Struct, structs
from msgspec.structs import replace

from izwi import errors
from izwi.checkpoints.registry import Registry, families
from izwi.errors import (
    ContextTooLong,
    EngineFault,
    InvalidMessage,
    InvalidRequest,
    IzwiError,
    Overloaded,
    RateLimited,
)
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.inputs.conversation import AnswerContent, AudioContent, ConversationInput, SpokenTurn
from izwi.inputs.images import ChatImage
from izwi.inputs.speech import (
    AlignmentInput,
    ReferenceClip,
    SpeechInput,
    TextMode,
    TranscriptionInput,
    VoicePrompt,
)
from izwi.request.correlation import Correlation
from izwi.request.deadlines import Deadlines
from izwi.request.log import Log
from izwi.request.request import Chunk, EncodeInput, Reason, Request, SamplingParams
from izwi.request.serialization import decode, encode, pack_error, unpack_error
from izwi.request.timing import TimedEvent, Timing
from izwi_api.serve import wire
from tests.engine.toy import ToyPrompt
from tests.examples import examples
from tests.models.tiny_aligner import write_tiny_aligner
from tests.models.tiny_asr import write_tiny_asr
from tests.models.tiny_chat import write_tiny_chat
from tests.models.tiny_lfm2_audio import write_tiny_lfm2_audio
from tests.models.tiny_tts import write_tiny_tts
from tests.models.tiny_vl import write_tiny_vl

CODEC, TOYS = wire.RequestCodec(), wire.RequestCodec([ToyPrompt])
NOISE = np.random.default_rng(3).standard_normal(48_000).astype(np.float32) * 0.1


def assert_same(got, sent, where="it"):
    assert type(got) is type(sent), where
    if isinstance(sent, np.ndarray):
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape), where
        assert got.tobytes() == sent.tobytes(), where
    elif isinstance(sent, Struct):
        for name in sent.__struct_fields__:
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
    envelope = codec.decode(over(codec.submit("api_server", [request], **options)))
    assert envelope.api_server == "api_server"
    (back,) = envelope.command.requests
    return back


def test_deadlines_of_a_caller_arrive_with_those_that_are_not_set():
    asked = Request("a", "toy", ToyPrompt((1, 2)), deadlines=Deadlines(queue_s=0.25, decode_s=9.0))
    back = crossed(asked, TOYS)
    assert back.deadlines == Deadlines(0.25, inf, 9.0)
    assert crossed(replace(asked, deadlines=None), TOYS).deadlines is None


# -- requests ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    root = tmp_path_factory.mktemp("described")
    registry = Registry()
    for kind in ("custom_voice", "base", "voice_design"):
        (root / kind).mkdir()
        registry.load(str(write_tiny_tts(root / kind, kind)))
    registry.load(str(write_tiny_asr(root / "asr")))
    registry.load(str(write_tiny_aligner(root / "aligner")))
    registry.load(str(write_tiny_chat(root / "chat")))
    registry.load(str(write_tiny_lfm2_audio(root / "s2s")))
    registry.load(str(write_tiny_vl(root / "sees")))
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


def written_requests(registry, max_new_tokens=40):
    stream = registry.speech("custom_voice").text_stream(
        "written", "custom_voice", SpeechInput("", max_new_tokens=max_new_tokens)
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
        stream.add_tokens(step, [])
    aligner = registry.model("aligner")
    ask = AlignmentInput(np.resize(NOISE, 32_000), "one two, three")
    yield aligner.prepare_alignment("aligned-1", "aligner", ask)


def chat_requests(registry):
    messages = (ChatMessage(Role.USER, "hello"), ChatMessage(Role.ASSISTANT, "yes", "he greets"))
    ask = ChatInput((*messages, messages[0]), thinking=True, temperature=0.3)
    yield registry.chat("chat").prepare_chat("chat-1", "chat", ask)


def seen_requests(registry):
    pixels = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
    message = ChatMessage(Role.USER, "what?", images=(ChatImage(0, pixels=pixels),))
    yield registry.chat("sees").prepare_chat("seen-1", "sees", ChatInput((message,)))


def conversation_requests(registry):
    turns = (
        SpokenTurn(Role.USER, ("hello", AudioContent(np.resize(NOISE, 16_000)))),
        SpokenTurn(Role.ASSISTANT, (AnswerContent(((7,), (1, 2, 3, 4, 5, 6, 7, 8))),)),
        SpokenTurn(Role.USER, ("and now?",)),
    )
    ask = ConversationInput(turns, audio_top_k=4, seed=3)
    yield registry.conversation("s2s").prepare_conversation("talk-1", "s2s", ask)


def test_all_that_the_models_prepare_arrives_as_it_was(registry):
    sources = (
        speech_requests,
        written_requests,
        heard_requests,
        chat_requests,
        seen_requests,
        conversation_requests,
    )
    made = [request for source in sources for request in source(registry)]
    assert len(made) >= 14
    assert any(request.open_input for request in made)
    assert any(request.output_positions for request in made)
    assert any(request.encode_only for request in made)
    known = {cls for same in families().values() for family in same for cls in family.prompts}
    assert {type(request.prompt) for request in made} == known
    for request in made:
        assert_same(crossed(request, with_ask=True), request)
        assert_same(crossed(request), replace(request, ask=None))


def test_limits_of_open_texts_go_along_but_not_their_clips(registry):
    (request,) = written_requests(registry)[:1]
    clip = ReferenceClip(NOISE, "la la la")
    request = replace(request, ask=replace(request.ask, voice=clip))
    assert crossed(request).max_entries == 39
    assert not crossed(request).prompt.limits_frames
    assert crossed(request).ask is None
    (unlimited,) = written_requests(registry, max_new_tokens=None)[:1]
    assert crossed(unlimited).prompt.limits_frames


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
            correlation=st.none() | st.builds(Correlation, st.text(), st.text()),
        )
    )


@st.composite
def logs(draw):
    floats = hnp.arrays(np.float32, st.integers(0, 4000))
    return Log(
        draw(hnp.arrays(np.int64, hnp.array_shapes(min_dims=2, max_dims=2, min_side=0))),
        draw(st.none() | floats),
        tuple(draw(st.lists(st.integers(0, 2**40), max_size=9))),
        tuple(draw(st.lists(st.integers(0, 2**40), max_size=9))),
        draw(st.booleans()),
        chunk_ages_s=tuple(draw(st.lists(st.floats(0, 1e6), max_size=9))),
    )


@examples(100)
@given(toys())
def test_any_request_arrives_as_it_was(request):
    assert_same(crossed(request, TOYS), request)


@examples(60)
@given(st.lists(toys(), min_size=1, max_size=3), st.data())
def test_any_log_arrives_as_it_was(requests, data):
    sent = [data.draw(logs()) for _ in requests]
    frames = over(TOYS.submit("api_server", requests, sent))
    command = TOYS.decode(frames).command
    for got, log in zip(command.logs, sent, strict=True):
        assert_same(got, log)
    for got, request in zip(command.requests, requests, strict=True):
        assert_same(got, request)


def test_unlisted_prompt_types_are_refused():
    class Stranger(Struct, frozen=True, tag=True):
        num_positions: int = 1
        encode_inputs: tuple[EncodeInput, ...] = ()

    with pytest.raises(InvalidMessage, match="Stranger"):
        crossed(Request("a", "b", Stranger()), TOYS)


def test_prompts_that_have_one_tag_are_refused():
    class Namesake(Struct, frozen=True, tag="ToyPrompt"):
        num_positions: int = 1

    with pytest.raises(TypeError, match="unique `tag`"):
        wire.RequestCodec([ToyPrompt, Namesake])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", "7"),
        ("max_entries", 1.5),
        ("stop_ids", [["a"]]),
        ("prompt", None),
        ("prompt", {"type": "os.system"}),
        ("ask", 3),
        ("ask", {"type": "chat", "messages": [{"role": "god", "content": ""}]}),
    ],
)
def test_what_does_not_fit_its_annotation_is_refused_by_its_id(field, value):
    request = msgspec.to_builtins(Request("a", "b", ToyPrompt((1, 2)))) | {field: value}
    message = ["api_server", ["Submit", [request, 3, {"request_id": 4}], []]]
    frames = [msgspec.msgpack.encode(message)]
    with pytest.raises(InvalidMessage):
        TOYS.decode(frames)
    assert wire.named_requests(frames) == ("api_server", ["a"])


BROKEN_ARRAYS = {
    "a frame that is not there": lambda packed: [*packed[:2], 2],
    "the message itself": lambda packed: [*packed[:2], 0],
    "a frame before the first": lambda packed: [*packed[:2], -1],
    "too long a shape": lambda packed: [packed[0], [41, 40], packed[2]],
    "a shape below zero": lambda packed: [packed[0], [-40, -40], packed[2]],
    "another dtype": lambda packed: ["int32", *packed[1:]],
    "a dtype that runs code": lambda packed: ["object", *packed[1:]],
    "no dtype": lambda packed: ["no", *packed[1:]],
    "nothing": lambda _: None,
    "text": lambda _: "1600",
}


@pytest.mark.parametrize("broken", BROKEN_ARRAYS)
def test_arrays_that_are_not_what_they_say_are_refused(broken):
    frames = encode(EncodeInput("clip", np.ones((40, 40), np.float32)))
    message = msgspec.msgpack.decode(frames[0])
    message["values"] = BROKEN_ARRAYS[broken](message["values"])
    with pytest.raises(InvalidMessage):
        decode([msgspec.msgpack.encode(message), frames[1]], EncodeInput)


def test_arrays_that_lost_a_part_are_refused():
    frames = encode(EncodeInput("clip", np.ones((40, 40), np.float32)))
    with pytest.raises(InvalidMessage, match="does not fill"):
        decode([frames[0], frames[1][:-4]], EncodeInput)


def test_arrays_of_python_objects_are_not_sent():
    with pytest.raises(TypeError, match="cannot be sent"):
        encode(Chunk("clip", np.array([{}])))
    with pytest.raises(ValueError, match="not object"):
        EncodeInput("clip", np.array([{}]), 0)


def test_large_arrays_are_not_copied():
    values = np.ones(4096, np.float32)
    frames = encode(EncodeInput("clip", values))
    assert len(frames) == 2
    assert np.shares_memory(values, np.frombuffer(frames[1], np.float32))
    back = decode(frames, EncodeInput).values
    assert np.shares_memory(values, back)
    assert not back.flags.writeable


def test_arrays_of_any_layout_arrive_as_they_were():
    whole = np.arange(6000, dtype=np.float32).reshape(50, 120)
    for values in (
        whole[:, ::3],
        whole.T,
        whole.astype(">f4"),
        whole[:0],
        np.array(3.5, np.float32),
    ):
        back = decode(encode(EncodeInput("clip", values)), EncodeInput).values
        np.testing.assert_array_equal(back, values)
        assert back.shape == values.shape


@examples(60)
@given(st.data(), st.randoms(use_true_random=False))
def test_broken_bytes_are_one_error_and_never_a_crash(data, dice):
    """Whatever is cut, changed or put in: a message is read, or InvalidMessage says why not."""
    request, log = data.draw(toys()), data.draw(logs())
    engine_says = data.draw(st.lists(chunks(), max_size=2))
    for frames, read in (
        (TOYS.submit("api_server", [request], [log]), TOYS.decode),
        (wire.encode_chunks(engine_says), wire.decode_engine_message),
    ):
        # each message is broken in many ways: making one takes longer than reading it
        for _ in range(10):
            broken = bytearray(frames[0])
            for _ in range(dice.randint(0, 3)):
                broken[dice.randrange(len(broken))] = dice.randrange(256)
            cut, noise = dice.randint(0, len(broken)), dice.randbytes(dice.randint(0, 60))
            for content in (bytes(broken), bytes(broken[:cut]), noise):
                received = [content, *frames[1 : dice.randint(1, len(frames))]]
                with suppress(InvalidMessage):
                    read(received)
                wire.named_requests(received)


def test_messages_of_thousands_of_levels_are_refused():
    for content in (b"\x91" * 100_000, b"\x81\xa1a" * 100_000):
        for prefix in (b"", b"\x92\xa1a", b"\x92\xa1a\x93\xa6Submit"):
            with pytest.raises(InvalidMessage):
                TOYS.decode([prefix + content])
            assert wire.named_requests([prefix + content]) == ("", [])


# -- chunks --------------------------------------------------------------------------------------
@st.composite
def timings(draw):
    mark = st.none() | st.floats(0, 1e6)
    events = st.lists(st.tuples(st.sampled_from(TimedEvent), st.floats(0, 9), st.floats(0, 9)))
    marks = [draw(mark) for _ in range(5)]
    return Timing(*marks, draw(st.integers(0, 99)), draw(st.booleans()), draw(events))


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
        timing=draw(st.none() | timings()),
    )


ERRORS = (
    IzwiError("broken"),
    Overloaded("full", retry_after_s=7),
    InvalidRequest("no", param="input"),
    ContextTooLong("too long", param="messages"),
)


@examples(100)
@given(st.lists(chunks(), max_size=4))
def test_any_chunks_arrive_as_they_were(sent):
    message = wire.decode_engine_message(over(wire.encode_chunks(sent)))
    assert len(message.chunks) == len(sent)
    for got, chunk in zip(message.chunks, sent, strict=True):
        assert_same(got, chunk)


def test_every_error_of_the_tree_comes_back_as_what_it_was():
    for cls in vars(errors).values():
        if isinstance(cls, type) and issubclass(cls, IzwiError):
            assert_same(unpack_error(pack_error(cls("because"))), cls("because"))
    limited = RateLimited("slowly", retry_after_s=3)
    assert_same(unpack_error(pack_error(limited)), limited)

    class Special(Overloaded):
        """An error class unknown to the other process arrives as its nearest known ancestor."""

    special = Special("full", retry_after_s=9)
    special.secret = "stays"
    back = unpack_error(pack_error(special))
    assert type(back) is Overloaded
    assert (str(back), vars(back)) == ("full", {"retry_after_s": 9})
    for values in ({"retry_after_s": "soon"}, {"__class__": "x"}):
        with pytest.raises(ValueError):
            unpack_error(structs.replace(pack_error(limited), values=values))
    fault = unpack_error(pack_error(RuntimeError("a bug")))
    assert isinstance(fault, EngineFault)
    assert "RuntimeError: a bug" in str(fault)
