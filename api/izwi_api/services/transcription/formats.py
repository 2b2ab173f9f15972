"""A transcription in the formats of its responses: JSON, SubRip and WebVTT."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from statistics import fmean

from izwi.model.alignment import AlignedWord
from izwi_api.schemas.alignment import word_json
from izwi_api.schemas.transcription import TranscriptionForm
from izwi_api.services.transcription.subtitles import Cue, Spoken, Timed, cue_lines
from izwi_api.services.transcription.text_tokens import TextToken
from izwi_api.services.transcription.transcribe import Segment, Transcription, joined


def usage_of(transcription: Transcription) -> dict[str, object]:
    """Return the usage in tokens."""
    read, written = transcription.num_prompt_positions, len(transcription.token_ids)
    return {
        "type": "tokens",
        "input_tokens": read,
        "output_tokens": written,
        "total_tokens": read + written,
    }


def logprobs_json(tokens: Iterable[TextToken]) -> list[dict[str, object]]:
    """Return tokens with log probabilities and exact bytes; a partial character is U+FFFD."""
    return [
        {
            "token": token.spelling.decode(errors="replace"),
            "bytes": list(token.spelling),
            "logprob": token.logprob,
        }
        for token in tokens
    ]


def extras_json(transcription: Transcription, fields: TranscriptionForm) -> dict[str, object]:
    """Return the optional keys of a json response or of a stream's last event."""
    extras: dict[str, object] = {}
    if fields.languages:
        extras["languages"] = [{"code": code} for code in transcription.language_codes]
    if fields.with_logprobs:
        extras["logprobs"] = logprobs_json(transcription.tokens)
    return extras


def verbose_json(
    transcription: Transcription,
    fields: TranscriptionForm,
    words: Iterable[AlignedWord] | None = None,
    cues: Sequence[Cue] = (),
) -> dict[str, object]:
    """Return the response with segments, words, subtitles or several of them.

    Args:
        transcription: The complete transcription.
        fields: The request.
        words: All words with their times; None if not requested.
        cues: Subtitles, if requested.
    """
    answer: dict[str, object] = {
        "task": "transcribe",
        "language": transcription.language.lower(),
        "duration": transcription.duration_s,
        "text": transcription.text,
    }
    if "segment" in fields.timestamp_granularities or words is None:
        answer["segments"] = _segments_json(transcription, fields.temperature)
    if words is not None:
        answer["words"] = [word_json(word) for word in words]
    if fields.with_cues:
        answer["cues"] = [
            {"start": cue.start_s, "end": cue.end_s, "text": _cue_text(cue)} for cue in cues
        ]
    return answer | {"usage": {"type": "duration", "seconds": transcription.duration_s}}


def _segments_json(transcription: Transcription, temperature: float) -> list[dict[str, object]]:
    """Return the segments. Whisper's figures that our models do not have are 0.

    `avg_logprob`, the mean over the tokens of the text, is also 0 unless log probabilities were
    requested: they would force all decodes off captured CUDA graphs.
    """
    return [
        {
            "id": index,
            "seek": 0,
            "start": segment.start_s,
            "end": segment.end_s,
            "text": segment.text,
            "tokens": list(segment.token_ids),
            "temperature": temperature,
            "avg_logprob": fmean(token.logprob for token in segment.tokens)
            if segment.tokens
            else 0.0,
            "compression_ratio": _compression_ratio(segment.text),
            "no_speech_prob": round(segment.no_speech_prob, 3),
            **({"speaker": segment.speaker} if segment.speaker else {}),
        }
        for index, segment in enumerate(transcription.segments)
    ]


def diarized_json(transcription: Transcription) -> dict[str, object]:
    """Return OpenAI's response with segments by speaker; those without text are left out."""
    return {
        "task": "transcribe",
        "duration": transcription.duration_s,
        "text": transcription.text,
        "segments": [
            diarized_segment(segment, index)
            for index, segment in enumerate(transcription.segments)
            if segment.text
        ],
        "usage": {"type": "duration", "seconds": transcription.duration_s},
    }


def diarized_segment(segment: Segment, index: int) -> dict[str, object]:
    """Return one segment of a diarized response, which is also an event of a stream."""
    return {
        "type": "transcript.text.segment",
        "id": segment_id(index),
        "start": segment.start_s,
        "end": segment.end_s,
        "text": segment.text,
        "speaker": segment.speaker,
    }


def segment_id(index: int) -> str:
    """Return the id of a segment of a response."""
    return f"seg_{index}"


def by_speaker(segments: Sequence[Spoken]) -> str:
    """Return the text with a line for each turn, after the speaker's name."""
    lines: list[tuple[str, str]] = []
    for segment in segments:
        if segment.text and lines and lines[-1][0] == segment.speaker:
            lines[-1] = segment.speaker, joined(lines[-1][1], segment.text)
        elif segment.text:
            lines.append((segment.speaker, segment.text))
    return "\n".join(f"{speaker}: {text}" for speaker, text in lines)


def srt(segments: Sequence[Timed]) -> str:
    """Return SubRip subtitles."""
    return "".join(
        f"{index}\n{_clock(cue.start_s, ',')} --> {_clock(cue.end_s, ',')}\n{_srt_text(cue)}\n\n"
        for index, cue in enumerate(segments, 1)
    )


def vtt(segments: Sequence[Timed]) -> str:
    """Return WebVTT subtitles."""
    cues = (
        f"{_clock(cue.start_s, '.')} --> {_clock(cue.end_s, '.')}\n"
        f"{_voice_tag(cue)}{_cue_text(cue)}\n\n"
        for cue in segments
    )
    return "WEBVTT\n\n" + "".join(cues)


def _compression_ratio(text: str) -> float:
    content = text.encode()
    return len(content) / len(zlib.compress(content)) if content else 0.0


def _clock(seconds: float, mark: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{mark}{rest % 1000:03}"


def _srt_text(cue: Timed) -> str:
    speaker = _speaker(cue)
    return f"{speaker}: {_cue_text(cue)}" if speaker else _cue_text(cue)


def _voice_tag(cue: Timed) -> str:
    """Return WebVTT's tag of a speaker, whose name may have no angle bracket or ampersand."""
    speaker = _speaker(cue).replace("&", "").replace("<", "").replace(">", "")
    return f"<v {speaker}>" if speaker else ""


def _speaker(cue: Timed) -> str:
    return " ".join(cue.speaker.replace("-->", "->").split()) if isinstance(cue, Cue) else ""


def _cue_text(segment: Timed) -> str:
    # An arrow in speech would read as a timing line, an empty line as the cue's end.
    return "\n".join(cue_lines(segment.text.replace("-->", "->")))
