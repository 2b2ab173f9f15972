"""Audio that is transcribed while it arrives: settled prefixes, windows made once, segments."""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from izwi.audio.mel import whisper_log_mel
from izwi.audio.split import split_at_silence
from izwi.backends.torch.backend import torch_backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.errors import InvalidRequest, TooLarge
from izwi.inputs.speech import TranscriptionInput
from izwi.request.input_stream import PartialTranscript
from izwi.request.request import Request
from izwi.request.sequence import Sequence
from izwi.runner.batch import span_of
from izwi_models.qwen3_asr import FAMILY
from izwi_models.qwen3_asr.features import SegmentFeatures
from izwi_models.qwen3_asr.frontend import Qwen3ASRFrontend
from izwi_models.qwen3_asr.prefix import StablePrefix, StreamRules
from izwi_models.qwen3_asr.prompt import TaggedTokens, build_prompt, cut_windows
from izwi_models.qwen3_asr.streaming import AsrStream, StreamStep
from tests.models.loading import Checkpoint, load_checkpoint
from tests.models.tiny_asr import SPECIALS, waveform, write_tiny_asr
from tests.steps import whole_span

GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "asr_stream.json").read_text(encoding="utf-8")
)
BACKEND = torch_backend("cpu")
SEGMENT_S = 20
RULES = StreamRules(segment_s=SEGMENT_S, search_s=2.5)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Checkpoint:
    torch.set_num_threads(1)
    return load_checkpoint(FAMILY, write_tiny_asr(tmp_path_factory.mktemp("tiny") / "asr"), BACKEND)


@pytest.fixture(scope="module")
def tokens(model) -> TaggedTokens:
    return TaggedTokens(model.frontend._tokenizer)


class Words:
    """One id a character; a stream over them needs no model."""

    def encode(self, answer: str) -> list[int]:
        return [ord(character) for character in answer]

    def decode(self, ids: Seq[int]) -> str:
        return "".join(map(chr, ids))


def open_stream(model: Checkpoint, rules: StreamRules = RULES, **ask: Any) -> AsrStream:
    stream = model.frontend.open_stream(**ask)
    return AsrStream(
        stream._tokens,
        model.frontend._config.audio,
        rules,
        language=stream.language,
        context=stream.context,
    )


def steps_of(
    stream: AsrStream, samples: np.ndarray, answers: Any, packet: int = 3200
) -> list[tuple[StreamStep, PartialTranscript]]:
    """Feed packets and answer every step with `answers(step)`."""
    done = []
    for start in range(0, len(samples), packet):
        stream.write(samples[start : start + packet])
        if start + packet >= len(samples):
            stream.close()
        while (step := stream.next_step()) is not None:
            done.append((step, stream.add_tokens(step, answers(step))))
    return done


def transcribe(model: Checkpoint, request: Request, engine: Engine | None = None) -> list[int]:
    if engine is None:
        engine = Engine({"tiny": model.model}, BACKEND, EngineConfig(kv_bytes=1 << 22))
    engine.submit(request)
    emitted: list[int] = []
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None
            emitted += chunk.entries[:, 0].tolist()
    return emitted


# -- the settled prefix ------------------------------------------------------------------------
@pytest.mark.parametrize("case", GOLDEN["scripted"])
def test_prefixes_and_prompts_are_the_references(model, tokens, case):
    rules = StreamRules(unfixed_chunks=case["rules"][0], unfixed_tokens=case["rules"][1])
    answer = StablePrefix()
    *chunks, last = zip(case["steps"], case["generated"], strict=True)
    for n, (expected, generated) in enumerate([*chunks, last]):
        if n < len(chunks):
            prefix = answer.for_chunk(n, rules, tokens)
        else:
            prefix = answer.for_end(n, rules, tokens)
        assert prefix == expected["prefix"]
        prompt = build_prompt(
            model.frontend._tokenizer,
            model.frontend._config.thinker_config,
            (),
            context=case["context"],
            language=case["language"],
            prefix=prefix,
        )
        pad = SPECIALS["<|audio_pad|>"]
        assert prompt.token_ids.tolist() == [i for i in expected["ids"] if i != pad]
        answer = StablePrefix(prefix + generated, prefix)


def test_a_run_on_random_weights_is_the_references(model, tokens):
    run = GOLDEN["run"]
    samples, chunk = waveform(run["seconds"]), int(16000 * run["chunk_s"])
    stops = [*range(chunk, len(samples), chunk), len(samples)]
    answer = StablePrefix()
    for n, stop in enumerate(stops):
        if n < len(stops) - 1:
            prefix = answer.for_chunk(n, StreamRules(), tokens)
        else:
            prefix = answer.for_end(n, StreamRules(), tokens)
        assert prefix == run["prefixes"][n]
        windows = cut_windows(model.frontend._config.audio, whisper_log_mel(samples[:stop]))
        prompt = build_prompt(
            model.frontend._tokenizer,
            model.frontend._config.thinker_config,
            windows,
            language=run["language"],
            prefix=prefix,
        )
        request = Request("r", "tiny", prompt, max_entries=run["tokens"], stop_ids=(304, 256))
        generated = tokens.decode(transcribe(model, request))
        assert generated == run["generated"][n]
        answer = StablePrefix(prefix + generated, prefix)
    transcript = model.frontend.read(tokens.encode(answer.raw), None)
    assert [transcript.language, transcript.text] == run["answer"]


def test_a_settled_prefix_never_gets_shorter():
    answer, rules = StablePrefix("x" * 30, "x" * 20), StreamRules()
    assert answer.for_chunk(4, rules, Words()) == "x" * 25
    answer = StablePrefix("x" * 25, "x" * 25)  # nothing was added
    assert answer.for_chunk(5, rules, Words()) == "x" * 25
    assert answer.for_end(5, rules, Words()) == "x" * 25


@pytest.mark.parametrize(
    ("before", "raw", "kept"),
    [
        ("close the door", "close the door behind", "close the"),
        ("close the door", "close the doorderer horber", "close the"),
        ("close a door", "close the door behind", "close"),
        ("", "close the door", ""),
        ("close the door behind you", "close the door", "close the door"),
    ],
)
def test_words_that_one_answer_alone_has_are_not_kept(before, raw, kept):
    rules = StreamRules(unfixed_tokens=5, is_agreed=True)
    answer = StablePrefix(raw + "?????", before=before)
    assert answer.for_chunk(5, rules, Words()) == answer.for_end(5, rules, Words()) == kept
    assert StablePrefix(raw, "close the d", before).for_chunk(5, rules, Words())[:11] == (
        "close the d"  # what was given to an answer stays
    )
    alone = StreamRules(unfixed_tokens=5)
    assert answer.for_chunk(5, alone, Words()) == raw


# -- features ----------------------------------------------------------------------------------
@pytest.mark.parametrize("seconds", [0.35, 0.99, 1.0, 7.9, 8.0, 8.01, 17.3])
def test_a_segment_in_one_go_has_the_features_of_the_whole(model, seconds):
    samples, config = waveform(seconds), model.frontend._config.audio
    features = SegmentFeatures(config, 20 * 16000)
    features.write(samples)
    made, expected = features.all_windows(samples), cut_windows(config, whisper_log_mel(samples))
    assert [w.kind for w in made] == [w.kind for w in expected]
    for ours, whole in zip(made, expected, strict=True):
        np.testing.assert_array_equal(ours.values, whole.values)
        assert ours.digest == whole.digest


def test_a_complete_window_keeps_the_scale_of_its_time(model):
    config, samples = model.frontend._config.audio, waveform(18.0)
    samples[:144_000] *= np.float32(0.01)  # 9 s of whispering, then speech
    features = SegmentFeatures(config, 20 * 16000)
    features.write(samples[: 8 * 16000 + 40])
    (first,) = features.windows(800)
    features.write(samples[8 * 16000 + 40 :])
    kept, second, last = features.all_windows(samples)
    assert kept is first
    alone, whole = whisper_log_mel(samples[: 8 * 16000]), whisper_log_mel(samples)
    np.testing.assert_allclose(kept.values[:, :799], alone[:, :799], atol=1e-5)
    # the floor alone differs from the offline features: 8 decades under an earlier loudest value
    differs = np.abs(kept.values - whole[:, :800]) > 1e-5
    assert 0 < differs.mean() < 1
    assert kept.values[differs].max() <= whole.min() + 1e-6
    np.testing.assert_allclose(second.values, whole[:, 800:1600], atol=1e-5)
    np.testing.assert_allclose(last.values, whole[:, 1600:], atol=1e-5)


def test_windows_that_are_complete_are_made_once(model):
    steps = [step for step, _ in steps_of(open_stream(model), waveform(37.0), lambda _: [65])]
    by_segment: dict[int, dict[int, Any]] = {}
    for step in steps:
        whole = [w for w in step.windows if w.values.shape[1] == 800]
        for n, window in enumerate(whole):
            assert by_segment.setdefault(step.segment, {}).setdefault(n, window) is window
    assert sum(map(len, by_segment.values())) >= 3
    assert len(steps) > 15


def test_the_engine_encodes_complete_windows_once(model, monkeypatch):
    engine = Engine({"tiny": model.model}, BACKEND, EngineConfig(kv_bytes=1 << 22))
    encoded: list[int] = []
    encode = model.model.encode

    def counted(inputs):
        encoded.extend(window.digest for window in inputs if window.values.shape[1] == 800)
        return encode(inputs)

    monkeypatch.setattr(model.model, "encode", counted)
    stream = open_stream(model)

    def answer(step: StreamStep) -> list[int]:
        request = model.frontend.prepare_stream_step(f"{step.stop}", "tiny", stream, step)
        return transcribe(model, structs.replace(request, max_entries=8), engine)

    steps = [step for step, _ in steps_of(stream, waveform(19.5), answer)]
    assert sum(w.values.shape[1] == 800 for step in steps for w in step.windows) >= 8
    assert len(encoded) == len(set(encoded)) == 2


def test_the_engine_runs_the_positions_of_complete_windows_once(model, monkeypatch):
    engine = Engine({"tiny": model.model}, BACKEND, EngineConfig(kv_bytes=1 << 22))
    counts: list[int] = []
    embed = model.model.embed

    def counted(rows):
        counts[-1] += sum(row.stop - row.start for row in rows)
        return embed(rows)

    monkeypatch.setattr(model.model, "embed", counted)
    stream, known = open_stream(model), 0  # windows that an earlier step has put into the pages

    def answer(step: StreamStep) -> list[int]:
        nonlocal known
        counts.append(0)
        request = model.frontend.prepare_stream_step(f"{step.stop}", "tiny", stream, step)
        emitted = transcribe(model, structs.replace(request, max_entries=8), engine)
        prompt, page = request.prompt, engine.config.page_size
        kept = (prompt.audio_start + 104 * known) // page * page if known else 0
        assert counts[-1] <= prompt.num_positions - kept + len(emitted)
        known = sum(w.values.shape[1] == 800 for w in step.windows)
        return emitted

    steps_of(stream, waveform(19.5), answer)
    assert known == 2
    assert len(counts) == 10


# -- steps and segments ------------------------------------------------------------------------
@pytest.mark.parametrize("packet", [160, 7777, 1_000_000])
@pytest.mark.parametrize("seconds", [5.0, 20.0, 20.2, 20.6, 47.0])
def test_segments_are_those_of_the_whole(model, seconds, packet):
    samples = waveform(seconds)
    done = steps_of(open_stream(model), samples, lambda _: [65], packet)
    ranges = [(step.start, step.stop) for step, _ in done if step.is_final]
    assert ranges == split_at_silence(
        samples, 16000, limit_s=SEGMENT_S, search_s=2.5, overrun=False
    )
    assert [heard.segment for _, heard in done if heard.is_final] == list(range(len(ranges)))
    if packet == 160:
        first = [step.stop / 16000 for step, _ in done if not step.is_final and not step.segment]
        assert first == [2.0 * n for n in range(1, int(min(seconds - 0.01, SEGMENT_S) / 2) + 1)]


def test_audio_in_one_piece_is_the_offline_request(model):
    samples = waveform(9.5)
    stream = open_stream(model, language="en", context="the system")
    stream.write(samples)
    stream.close()
    step = stream.next_step()
    ours = model.frontend.prepare_stream_step("r", "tiny", stream, step).prompt
    ask = TranscriptionInput(samples, language="en", context="the system")
    theirs = model.frontend.prepare_transcription("r", "tiny", ask).prompt
    assert step.is_final
    np.testing.assert_array_equal(ours.token_ids, theirs.token_ids)
    np.testing.assert_array_equal(ours.content_keys, theirs.content_keys)


def test_the_end_goes_on_from_the_settled_prefix(model, tokens):
    """What the end promises: the offline prompt, and greedy from the prefix on."""
    samples, rules = waveform(7.0), StreamRules(unfixed_tokens=3)
    stream = open_stream(model, rules, language="en")
    answers: dict[int, list[int]] = {}

    def answer(step: StreamStep) -> list[int]:
        request = model.frontend.prepare_stream_step("r", "tiny", stream, step)
        answers[step.stop] = transcribe(model, structs.replace(request, max_entries=8))
        return answers[step.stop]

    *_, (before, _), (last, heard) = steps_of(stream, samples, answer)
    raw = before.prefix + tokens.decode(answers[before.stop])
    assert last.prefix == tokens.decode(tokens.encode(raw)[:-3])
    offline = build_prompt(
        model.frontend._tokenizer,
        model.frontend._config.thinker_config,
        cut_windows(model.frontend._config.audio, whisper_log_mel(samples)),
        language="English",
        prefix=last.prefix,
    )
    request = Request("r", "tiny", offline, max_entries=8, stop_ids=(304, 256))
    assert transcribe(model, request) == answers[last.stop]
    assert heard.text == (last.prefix + tokens.decode(answers[last.stop])).strip()


def test_prompts_of_a_segment_begin_alike(model):
    stream = open_stream(model)
    requests = [
        model.frontend.prepare_stream_step("r", "tiny", stream, step)
        for step, _ in steps_of(stream, waveform(19.0), lambda _: [306, 65, 66, 67, 68, 69, 70])
    ]
    keys = [keys_of(model, request) for request in requests]
    for (before, after), request in zip(pairwise(keys), requests, strict=False):
        prompt = request.prompt
        shared = next(i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
        whole = sum(w.values.shape[1] == 800 for w in prompt.encode_inputs)
        assert shared == prompt.audio_start + 104 * whole
    assert sum(w.values.shape[1] == 800 for w in requests[-1].prompt.encode_inputs) == 2


def keys_of(model: Checkpoint, request: Request) -> list[int]:
    sequence = Sequence(request, 0)
    sequence.emitted = [(7,), (8,)]
    keys = model.model.content_keys(whole_span(sequence))
    assert keys[-2:] == [7, 8]
    assert all(0 <= key < 1 << 63 for key in keys)
    cut = [model.model.content_keys(span_of(sequence, i, i + 3)) for i in range(0, len(keys), 3)]
    assert [key for part in cut for key in part] == keys
    return keys


def test_keys_depend_on_the_audio_and_the_position(model):
    prompt = model.frontend.prepare_transcription(
        "r", "tiny", TranscriptionInput(waveform(17.0))
    ).prompt
    audio = slice(prompt.audio_start, prompt.audio_start + prompt.num_audio)
    assert len(set(prompt.content_keys[audio].tolist())) == prompt.num_audio
    assert prompt.content_keys[audio].min() >= 1 << 62
    np.testing.assert_array_equal(
        np.delete(prompt.content_keys, audio), np.delete(prompt.token_ids, audio)
    )
    again = model.frontend.prepare_transcription(
        "r", "tiny", TranscriptionInput(waveform(17.0))
    ).prompt
    other = model.frontend.prepare_transcription(
        "r", "tiny", TranscriptionInput(waveform(17.0, 1))
    ).prompt
    np.testing.assert_array_equal(prompt.content_keys, again.content_keys)
    assert not (prompt.content_keys[audio] == other.content_keys[audio]).any()


# -- what is reported --------------------------------------------------------------------------
class Speaker:
    """Writes a character for every 200 ms of audio; the last four of an answer may change."""

    def __init__(self, seconds: float):
        self.text = "".join(chr(ord("a") + n % 26) for n in range(int(seconds * 5)))

    def answer(self, step: StreamStep) -> list[int]:
        stop = int(step.stop / 16000 * 5)
        said = self.text[int(step.start / 16000 * 5) : stop]
        if not step.is_final:
            said = said[:-4] + "????"
        raw = f"language English<asr_text>{said}"
        assert raw.startswith(step.prefix)
        return Words().encode(raw[len(step.prefix) :])


def test_stable_text_stays_and_what_is_behind_a_cut_is_not_settled(model):
    seconds = 64.0
    speaker = Speaker(seconds)
    stream = AsrStream(Words(), model.frontend._config.audio, RULES)
    done = steps_of(stream, waveform(seconds), speaker.answer)
    for (_, before), (_, after) in pairwise(done):
        if before.segment == after.segment and not before.is_final:
            assert after.stable.startswith(before.stable)
            assert after.text.startswith(before.stable)
        assert after.language == "English"
    assert any(heard.stable and not heard.is_final for _, heard in done)
    assert not any("?" in heard.stable for _, heard in done)
    finals = [heard for _, heard in done if heard.is_final]
    assert len(finals) > 3
    assert "".join(heard.text for heard in finals) == speaker.text[: len(speaker.text)]


@settings(max_examples=6, deadline=None)
@given(gaps=st.lists(st.floats(0.6, 12.0), min_size=4, max_size=4), leads=st.booleans())
def test_segments_end_in_pauses_and_stable_text_is_before_them(model, gaps, leads):
    """Sentences of 3 s between pauses of any length, for a model that takes 8 s."""
    parts = [np.zeros(round(gaps[0] * 16000) if leads else 0, np.float32)]
    sentence = np.random.default_rng(0).normal(0.0, 0.1, 3 * 16000).astype(np.float32)
    said: list[tuple[int, int]] = []
    for gap in gaps[1:]:
        start = sum(map(len, parts))
        said.append((start, start + len(sentence)))
        parts += [sentence, np.zeros(round(gap * 16000), np.float32)]
    samples = np.concatenate(parts)
    speaker = Speaker(len(samples) / 16000)
    rules = StreamRules(chunk_s=0.4, segment_s=8.0, search_s=1.0)
    done = steps_of(
        AsrStream(Words(), model.frontend._config.audio, rules), samples, speaker.answer
    )
    for (_, before), (_, after) in pairwise(done):
        if before.segment == after.segment:
            assert after.text.startswith(before.stable)
    finals = [heard for _, heard in done if heard.is_final]
    assert "".join(heard.text for heard in finals) == speaker.text
    ends = [step.stop for step, _ in done if step.is_final]
    assert not [end for end in ends for start, stop in said if start < end < stop]


def test_text_is_withheld_until_its_language_is_known(model):
    stream = AsrStream(Words(), model.frontend._config.audio, RULES)
    script = iter(["language Eng", "language English<asr_text>hello", "hello you"])
    done = steps_of(stream, waveform(5.0), lambda _: Words().encode(next(script)))
    assert [heard.text for _, heard in done] == ["", "hello", "hello you"]
    assert [heard.language for _, heard in done] == ["", "English", "English"]


def test_a_dropped_step_is_made_up_for_by_the_next(model):
    stream, samples = AsrStream(Words(), model.frontend._config.audio, RULES), waveform(11.0)
    speaker = Speaker(11.0)
    stream.write(samples[: 6 * 16000 + 40])
    dropped = stream.next_step()
    assert dropped.stop == 6 * 16000
    assert stream.next_step() is None
    stream.write(samples[6 * 16000 + 40 : 8 * 16000 + 39])
    assert not stream.is_due()
    assert stream.is_due(1)
    stream.write(samples[8 * 16000 + 39 :])
    stream.close()
    last = stream.next_step()
    assert (last.start, last.stop, last.prefix) == (0, len(samples), "")
    assert stream.add_tokens(last, speaker.answer(last)).text == speaker.text
    assert stream.next_step() is None


def test_a_stuck_decoder_is_cut_short_at_every_step(model):
    stream = open_stream(model)
    limits = [
        model.frontend.prepare_stream_step("r", "tiny", stream, step).max_entries
        for step, _ in steps_of(stream, waveform(19.0), lambda _: [65] * 40)
    ]
    assert max(limits) <= 32 + 2 * 12 + 40


def test_memory_is_that_of_one_segment(model):
    stream, packet = AsrStream(Words(), model.frontend._config.audio, RULES), waveform(1.0)
    sizes = []
    for _ in range(120):
        stream.write(packet)
        while (step := stream.next_step()) is not None:
            stream.add_tokens(step, Words().encode("language English<asr_text>a"))
        buffered = sum(piece.nbytes for piece in stream._pieces)
        sizes.append(buffered + stream._features._log_power.nbytes)
        assert len(stream._answers) <= SEGMENT_S / 2
        assert stream.room <= (SEGMENT_S + 0.5) * 16000
    assert max(sizes[60:]) <= max(sizes[:60])
    assert max(sizes) < (SEGMENT_S + 2) * (16000 * 4 + 100 * 128 * 4)


def test_too_little_audio_is_ignored_and_too_loud_audio_is_clipped(model):
    stream = open_stream(model)
    stream.write(np.zeros(200, np.float32))
    stream.close()
    assert stream.next_step() is None
    stream = open_stream(model)
    stream.write(waveform(1.0) * np.float32(9.0))
    assert np.abs(stream._pieces[0]).max() == 1.0


@pytest.mark.parametrize("ask", [{"language": "Klingon"}, {"chunk_s": 0.1}, {"chunk_s": 99.0}])
def test_invalid_stream_options_name_their_parameter(model, ask):
    with pytest.raises(InvalidRequest) as raised:
        model.frontend.open_stream(**ask)
    assert raised.value.param in ask


def test_a_context_that_leaves_no_room_is_too_large(model):
    stream = open_stream(model, context="word " * 20000)
    stream.write(waveform(1.0))
    stream.close()
    with pytest.raises(TooLarge):
        model.frontend.prepare_stream_step("r", "tiny", stream, stream.next_step())


def test_segments_fit_the_checkpoint(model):
    assert model.frontend.open_stream()._rules == StreamRules(unfixed_tokens=20, is_agreed=True)
    config = replace(model.frontend._config, max_audio_seconds=8.0)
    short = Qwen3ASRFrontend(config, model.frontend._tokenizer, ())
    assert short.open_stream()._rules.segment_s == 8.0
    assert short.open_stream()._rules.search_s == 1.0
    done = steps_of(short.open_stream(), waveform(30.0), lambda _: [65])
    assert [(s.start, s.stop) for s, _ in done if s.is_final] == short.split_audio(waveform(30.0))
