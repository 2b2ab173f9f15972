"""Text that is spoken while it is written: however it is cut, ids and codes are the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from izwi.backends.torch.backend import torch_backend
from izwi.backends.torch.sampler import Sampler, Suppressed
from izwi.errors import InvalidRequest, TooLarge, VoiceNotFound
from izwi.inputs.speech import ReferenceClip, SpeechInput, TextMode, VoicePrompt
from izwi.request.input_stream import TextPart
from izwi.request.request import Request
from izwi.request.sequence import Sequence
from izwi.runner.batch import row_of, span_of
from izwi_models.qwen3_tts import FAMILY
from izwi_models.qwen3_tts.model import Qwen3TTS
from izwi_models.qwen3_tts.pieces import sentences
from izwi_models.qwen3_tts.prompt import SpeechPrompt
from tests.examples import examples
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.test_text_cuts import cut, prose
from tests.models.tiny_tts import tiny_config, write_json, write_tiny_tts
from tests.models.tts_loop import Cache, PackedContext, start
from tests.steps import batch, step, whole_span

EOS_TEXT, PAD = 312, 310
NOISE = np.random.Generator(np.random.PCG64(2)).standard_normal(24000).astype(np.float32) * 0.1


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


LoadModel = Callable[..., Checkpoint]
Codes = dict[str, list[tuple[int, ...]]]  # by request


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> LoadModel:
    loaded: dict[str, Checkpoint] = {}

    def load_once(kind: str, **change: Any) -> Checkpoint:
        name = f"{kind}{sorted(change.items())}"
        if name not in loaded:
            folder = write_tiny_tts(tmp_path_factory.mktemp(kind), kind)
            write_json(folder / "config.json", tiny_config(kind) | change)
            loaded[name] = load_checkpoint(FAMILY, folder, torch_backend("cpu", "float32"))
        return loaded[name]

    return load_once


# -- requests ------------------------------------------------------------------------------------
VOICES: dict[str, dict[str, Any]] = {
    "speaker": {"kind": "custom_voice", "voice": "ryan", "language": "en"},
    "vector": {"kind": "base", "voice": VoicePrompt(np.ones(64, np.float32))},
    "clip": {
        "kind": "base",
        "voice": VoicePrompt(np.ones(64, np.float32), np.ones((9, 16), np.int64), "hi"),
    },
    "short clip": {
        "kind": "base",
        "voice": VoicePrompt(np.ones(64, np.float32), np.ones((2, 16), np.int64), "hello there"),
    },
}
LIMITS = {
    "whole": {},
    "limited": {"max_text_characters": 20},
    "english": {"max_text_characters": 20, "plain_english": True},
    "long english": {"plain_english": True},
}


def written(model: Checkpoint, pieces: list[str], ask: SpeechInput) -> list[TextPart]:
    """All parts that a text gives, one a piece."""
    stream = model.frontend.text_stream("id", "tiny", ask)
    parts = [part for piece in pieces for part in stream.write(piece)]
    whole: dict[int, TextPart] = {}
    for part in [*parts, *stream.close()]:
        before = whole.get(part.piece)
        assert (part.request is not None) == (before is None)
        assert before is None or not before.closed
        if before:
            part = dataclasses.replace(part, request=before.request, ids=before.ids + part.ids)
        whole[part.piece] = part
    assert list(whole) == list(range(len(whole)))
    assert all(part.closed for part in whole.values())
    return list(whole.values())


def layout(request: Request, ids: tuple[int, ...] = ()) -> tuple[list[int], ...]:
    """Prompt and track of a request, with what was written to it."""
    prompt = request.prompt
    assert isinstance(prompt, SpeechPrompt)
    track = [*prompt.text_track.tolist(), *ids, *([EOS_TEXT] if request.open_input else [])]
    return prompt.text.tolist(), prompt.codec.tolist(), track


@examples(120)  # of each voice and limit
@given(text=prose, data=st.data())
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("voice", VOICES)
def test_written_text_is_the_whole_text(
    load: LoadModel, voice: str, limit: str, text: str, data: st.DataObject
) -> None:
    asked = dict(VOICES[voice])
    model = load(asked.pop("kind"), **LIMITS[limit])
    ask = SpeechInput(text, text_mode=TextMode.STREAMING, seed=3, **asked)
    if not text.strip() or not any(sentences(text) if "english" in limit else [text]):
        with pytest.raises(InvalidRequest):
            written(model, cut(text, data), ask)
        return
    parts = written(model, cut(text, data), ask)
    pieces = model.frontend.split_text(text)
    assert len(parts) == len(pieces)
    for number, (part, piece) in enumerate(zip(parts, pieces, strict=True)):
        whole = model.frontend.prepare_speech(f"id-{number}", "tiny", replace(ask, text=piece))
        assert part.request is not None
        assert part.request_id == part.request.request_id == whole.request_id
        assert layout(part.request, part.ids) == layout(whole)
        sequence = closed(part)
        assert model.model.max_entries(whole_span(sequence)) == whole.max_entries
        assert part.request.max_entries >= whole.max_entries
        assert part.request.sampling == whole.sampling
        again = model.frontend.prepare_speech(f"id-{number}", "tiny", part.request.ask)
        assert layout(again) == layout(part.request)
        assert (again.max_entries, again.open_input) == (
            part.request.max_entries,
            part.request.open_input,
        )


def closed(part: TextPart) -> Sequence:
    assert part.request is not None
    sequence = Sequence(part.request, 0)
    sequence.input.written, sequence.input.is_open = list(part.ids), False
    return sequence


def test_a_piece_that_waits_for_its_text_is_what_it_is_without_a_stream(load: LoadModel) -> None:
    model = load("custom_voice", **LIMITS["english"])
    text = "One 2 three. And some more words than one piece can hold."
    ask = SpeechInput("", "ryan", text_mode=TextMode.FULL)
    parts = written(model, list(text), ask)
    for part, piece in zip(parts, model.frontend.split_text(text), strict=True):
        assert part.request is not None
        assert part.ids == ()
        assert not part.request.open_input
        assert isinstance(part.request.ask, SpeechInput)
        assert part.request.ask.text == piece
        whole = model.frontend.prepare_speech("id", "tiny", replace(ask, text=piece))
        assert layout(part.request) == layout(whole)
        assert part.request.max_entries == whole.max_entries


def test_speech_begins_long_before_the_text_is_complete(load: LoadModel) -> None:
    def first(model: Checkpoint, text: str) -> str:
        """What was written when the request came."""
        stream = model.frontend.text_stream("id", "tiny", SpeechInput("", "ryan"))
        return next(text[: n + 1] for n in range(len(text)) if stream.write(text[n]))

    assert first(load("custom_voice"), "The train leaves at 7.") == "The t"
    english = load("custom_voice", **LIMITS["english"])
    assert first(english, "The train leaves at 7.") == "The train "
    assert first(english, "7 trains leave.") == "7 trains "


def test_text_may_be_cut_between_the_halves_of_a_character(load: LoadModel) -> None:
    model, ask = load("custom_voice"), SpeechInput("", "ryan")
    halves = written(model, ["a \ud83d", "\ude00 b \ud83d", " c", "\ud83d"], ask)
    whole = written(model, ["a \U0001f600 b \ufffd c"], ask)
    assert [part.ids for part in halves] == [part.ids for part in whole]


def test_text_stream_refuses_invalid_options_before_any_text(load: LoadModel) -> None:
    model = load("both")
    with pytest.raises(VoiceNotFound):
        model.frontend.text_stream("id", "tiny", SpeechInput("", "nobody"))
    with pytest.raises(InvalidRequest) as caught:
        model.frontend.text_stream("id", "tiny", SpeechInput("", temperature=-1.0))
    assert caught.value.param == "temperature"
    with pytest.raises(InvalidRequest) as caught:
        model.frontend.text_stream("id", "tiny", SpeechInput("", max_new_tokens=1))
    assert caught.value.param == "max_new_tokens"
    clip = ReferenceClip(np.tile(NOISE, 100), "la " * 2000)
    with pytest.raises(TooLarge):
        written(model, ["Hello there."], SpeechInput("", clip, text_mode=TextMode.FULL))


# -- codes ---------------------------------------------------------------------------------------
@dataclass
class Loop:
    """The plainest engine that text can be written to."""

    model: Qwen3TTS
    sequences: dict[str, Sequence] = field(default_factory=dict)
    cache: Cache = field(default_factory=dict)

    def submit(self, request: Request) -> None:
        self.sequences[request.request_id] = start(self.model, request)

    def submit_parts(self, parts: list[TextPart]) -> None:
        for part in parts:
            if part.request is not None:
                self.submit(part.request)
            sequence = self.sequences[part.request_id]
            assert sequence.input.is_open or not part.ids
            sequence.input.written += part.ids
            sequence.input.is_open = sequence.input.is_open and not part.closed

    def step(self) -> int:
        """Run every sequence whose inputs are there; how many ran."""
        ready = [
            sequence
            for sequence in self.sequences.values()
            if not sequence.status.ended
            and self.model.positions_ready(whole_span(sequence)) == sequence.num_positions
        ]
        if not ready:
            return 0
        rows = [row_of(s, s.kv.num_computed, s.num_positions) for s in ready]
        suppressed = Suppressed.on(torch.device("cpu"), self.model.tracks[0].suppressed)
        pick = Sampler(rows, suppressed).pick
        with torch.inference_mode():
            drawn = step(
                self.model, self.model._ops, batch(*rows), PackedContext(rows, self.cache), pick
            )
        for sequence, entry in zip(ready, drawn.tolist(), strict=True):
            sequence.kv.num_computed = sequence.num_positions
            if entry[0] in sequence.request.stop_ids:
                sequence.status.ended = True
                continue
            sequence.emitted.append(tuple(entry))
            sequence.status.ended = len(sequence.emitted) >= self.model.max_entries(
                whole_span(sequence)
            )
        return len(rows)

    def finish(self) -> Codes:
        while self.step():
            pass
        assert all(sequence.status.ended for sequence in self.sequences.values())
        return {name: sequence.emitted for name, sequence in self.sequences.items()}


TEXT = "We said. 12 words are here, and they go on for long enough to be waited for."


@pytest.fixture(scope="module")
def codes_at_once(load: LoadModel) -> Callable[[Checkpoint, SpeechInput], Codes]:
    """The codes of the whole text, computed once."""
    computed: dict[tuple[int, str], Codes] = {}

    def compute(model: Checkpoint, ask: SpeechInput) -> Codes:
        loop, key = Loop(model.model), (id(model), repr(ask))
        if key not in computed:
            for number, piece in enumerate(model.frontend.split_text(TEXT)):
                asked = replace(ask, text=piece)
                loop.submit(model.frontend.prepare_speech(f"id-{number}", "tiny", asked))
            computed[key] = loop.finish()
        return computed[key]

    return compute


@examples(8)
@given(data=st.data())
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.9])
@pytest.mark.parametrize(
    ("voice", "limit"),
    [
        ("clip", "whole"),
        pytest.param("speaker", "whole", marks=pytest.mark.slow),
        pytest.param("speaker", "english", marks=pytest.mark.slow),
    ],
)
def test_codes_are_those_of_the_whole_text(
    load: LoadModel,
    codes_at_once: Callable[[Checkpoint, SpeechInput], Codes],
    voice: str,
    limit: str,
    temperature: float,
    data: st.DataObject,
) -> None:
    asked = dict(VOICES[voice])
    model = load(asked.pop("kind"), **LIMITS[limit])
    asked |= {"temperature": temperature, "seed": 11, "max_new_tokens": 16}
    ask = SpeechInput("", text_mode=TextMode.STREAMING, **asked)
    beside = Loop(model.model)
    stream = model.frontend.text_stream("id", "tiny", ask)
    for piece in cut(TEXT, data):
        beside.submit_parts(stream.write(piece))
        for _ in range(data.draw(st.integers(0, 12))):
            beside.step()
    beside.submit_parts(stream.close())
    assert beside.finish() == codes_at_once(model, ask)


def test_a_sequence_that_outruns_its_text_waits_and_frames_need_their_text(load: LoadModel) -> None:
    model = load("custom_voice")
    loop, stream = (
        Loop(model.model),
        model.frontend.text_stream("id", "tiny", SpeechInput("", "ryan", seed=1)),
    )
    loop.submit_parts(stream.write("Hello there "))
    sequence = loop.sequences["id-0"]
    while loop.step():
        pass
    known = model.model.positions_ready(whole_span(sequence))
    assert known == sequence.num_positions - 1
    assert len(sequence.emitted) == len(sequence.input.written) + 1
    rows = [row_of(sequence, sequence.kv.num_computed, sequence.num_positions)]
    with pytest.raises(ValueError, match="not written"):
        step(
            model.model,
            model.model._ops,
            batch(*rows),
            PackedContext(rows, loop.cache),
            lambda logits, _: logits.argmax(-1),
        )
    with pytest.raises(ValueError, match="not written"):
        model.model.content_keys(whole_span(sequence))
    assert loop.step() == 0
    loop.submit_parts(stream.write("friend "))
    assert loop.step() == 1


# -- content keys --------------------------------------------------------------------------------
def test_content_keys_are_equal_where_the_inputs_are(load: LoadModel) -> None:
    model = load("both")
    clip = ReferenceClip(NOISE, "hi")
    voice = VoicePrompt(np.ones(64, np.float32), np.arange(48).reshape(3, 16), "hi")
    asks = {
        "plain": {"voice": "ryan"},
        "again": {"voice": "ryan"},
        "eric": {"voice": "eric"},
        "full": {"voice": "ryan", "text_mode": TextMode.FULL},
        "clip": {"voice": clip},
        "same clip": {"voice": ReferenceClip(NOISE.copy(), "hi")},
        "other clip": {"voice": ReferenceClip(NOISE * 0.5, "hi")},
        "voice": {"voice": voice},
        "other voice": {"voice": replace(voice, codes=np.full((3, 16), 7))},
        "other vector": {"voice": replace(voice, speaker_embedding=np.zeros(64, np.float32))},
    }
    keys: dict[str, list[int]] = {}
    frames = [tuple(range(n, n + 16)) for n in range(6)]
    for name, fields in asks.items():
        ask = SpeechInput("Hello.", **({"text_mode": TextMode.STREAMING} | fields))
        sequence = Sequence(model.frontend.prepare_speech(name, "tiny", ask), 0)
        sequence.emitted = list(frames)
        count = sequence.num_positions
        keys[name] = model.model.content_keys(whole_span(sequence))
        assert len(keys[name]) == count
        assert all(0 <= key < 1 << 63 for key in keys[name])
        for middle in range(count):
            parts = [
                model.model.content_keys(span_of(sequence, *part))
                for part in ((0, middle), (middle, count))
            ]
            assert parts[0] + parts[1] == keys[name]
    assert keys["plain"] == keys["again"]
    assert keys["clip"] == keys["same clip"]
    for others in ("eric", "full"):
        assert keys["plain"][:3] == keys[others][:3]  # the role
        assert keys["plain"] != keys[others]
    for one, other in (("clip", "other clip"), ("voice", "other voice"), ("voice", "other vector")):
        assert keys[one] != keys[other]
        assert len(keys[one]) == len(keys[other])
    assert len(set(keys["clip"])) > len(keys["clip"]) - 6  # every frame of a clip has its own


def test_content_keys_name_what_the_talker_is_fed(load: LoadModel) -> None:
    """Positions of random prompts have equal keys if and only if their embeddings are equal."""
    model = load("both")
    rows: list[tuple[int, bytes]] = []
    for seed, fields in enumerate(
        [{"voice": "ryan"}, {"voice": "eric"}, {"voice": ReferenceClip(NOISE, "hi there")}]
    ):
        for text in ("Hello there.", "there Hello."):
            ask = SpeechInput(text, text_mode=TextMode.STREAMING, **fields)
            sequence = start(
                model.model, model.frontend.prepare_speech(f"{seed}{text}", "tiny", ask)
            )
            sequence.emitted = [tuple([n % 3] * 16) for n in range(16)]
            fed = fed_to_talker(model, sequence)
            keys = model.model.content_keys(whole_span(sequence))
            rows += zip(keys, [row.tobytes() for row in fed], strict=True)
    by_key: dict[int, set[bytes]] = {}
    for key, row in rows:
        by_key.setdefault(key, set()).add(row)
    assert all(len(found) == 1 for found in by_key.values())
    assert len(by_key) == len({row for _, row in rows})


def fed_to_talker(model: Checkpoint, sequence: Sequence) -> np.ndarray:
    """(positions, hidden) rounded, one position at a time so that batching does not show."""
    from izwi_models.qwen3_tts.model import Positions

    fed = []
    for position in range(sequence.num_positions):
        positions = Positions()
        model.model._add(positions, row_of(sequence, position, position + 1))
        x = positions.embed(model.model._ops, model.model._weights, model.model._pad)
        fed.append(np.asarray(x)[0].round(4) + 0.0)
    return np.stack(fed)


@pytest.mark.slow
def test_the_tiny_checkpoint_of_the_wheel_streams_its_text() -> None:
    """Words of a sentence reach the model before the sentence is complete."""
    folder = Path(__file__).parents[2] / "models" / "izwi_models" / "tiny" / "izwi-tiny-tts"
    model = load_checkpoint(FAMILY, folder, torch_backend("cpu", "float32"))
    text = "Dr. Smith paid $4.50, and that was all he had. Then he left."
    ask = SpeechInput("", "amber", seed=5)
    loop, at_once = Loop(model.model), Loop(model.model)
    stream = model.frontend.text_stream("id", "tiny", ask)
    for number, character in enumerate(text):
        loop.submit_parts(stream.write(character))
        loop.step()
        if number == text.index(","):
            assert any(sequence.emitted for sequence in loop.sequences.values())
    loop.submit_parts(stream.close())
    whole = replace(ask, text_mode=TextMode.STREAMING)
    for number, piece in enumerate(model.frontend.split_text(text)):
        at_once.submit(
            model.frontend.prepare_speech(f"id-{number}", "tiny", replace(whole, text=piece))
        )
    assert loop.finish() == at_once.finish()


@pytest.mark.parametrize("turn_ids", [(1, 2, 3), (1, 2, 3, -1), (1, 2, 3, 10**6)])
def test_turn_ids_that_begin_no_turn_are_refused(
    load: LoadModel, turn_ids: tuple[int, ...]
) -> None:
    ask = SpeechInput("", "ryan", text_mode=TextMode.STREAMING, turn_ids=turn_ids)
    with pytest.raises(InvalidRequest, match="turn_ids"):
        load("custom_voice").frontend.prepare_speech("id", "tiny", ask)
