"""Audio in and out: every format opens elsewhere, streams, and bad files are refused."""

from __future__ import annotations

import io
import struct
from typing import Any

import av
import numpy as np
import pytest
import soundfile as sf

from izwi.audio.decode import decode_audio
from izwi.audio.encode import FORMATS, stream_encoder, wav_header, with_length
from izwi.audio.limits import DecodeLimits
from izwi.audio.pcm import from_s16le, to_s16le
from izwi.audio.resample import StreamResampler, resample
from izwi.audio.tempo import StreamTempo
from izwi.errors import InvalidAudio, InvalidRequest, TooLarge

RATE = 24_000


def tone(seconds: float = 2.0, rate: int = RATE, hertz: float = 440.0) -> np.ndarray:
    return (0.4 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(
        np.float32
    )


def encode(audio_format: str, pcm: np.ndarray, chunk: int = 1920) -> list[bytes]:
    encoder = stream_encoder(audio_format, RATE)
    pieces = [encoder.write(pcm[i : i + chunk]) for i in range(0, len(pcm), chunk)]
    return [*pieces, encoder.finish()]


def wav_bytes(pcm: np.ndarray, rate: int = RATE) -> bytes:
    body = to_s16le(pcm)
    return wav_header(rate, len(body)) + body


@pytest.mark.parametrize("container", ["WAV", "WAVEX", "W64", "RF64"])
def test_a_wav_is_opened_without_a_search_for_other_codecs(
    monkeypatch: pytest.MonkeyPatch, container: str
) -> None:
    file = io.BytesIO()
    sf.write(file, tone(40.0), RATE, format=container, subtype="PCM_16")
    read_bytes: list[int] = []

    def opened(source: io.BytesIO, **more: Any) -> Any:
        container = av_open(source, **more)
        read_bytes.append(source.tell())
        return container

    av_open = av.open
    monkeypatch.setattr(av, "open", opened)
    assert len(decode_audio(file.getvalue(), RATE)) == 40 * RATE
    if container in ("WAV", "WAVEX"):
        assert not read_bytes  # libsndfile reads them
    else:
        assert max(read_bytes) < 100_000  # FFmpeg reads 32 KiB at a time; a search reads 229 KB


def test_audio_after_a_long_list_of_tags_is_found() -> None:
    whole = wav_bytes(tone(1.0))
    tags = b"LIST" + struct.pack("<I", 20_000) + b"INFO" + b"ICMT" + struct.pack("<I", 19_988)
    tagged = whole[:36] + tags + b"x" * 19_988 + whole[36:]
    np.testing.assert_array_equal(decode_audio(tagged, RATE), decode_audio(whole, RATE))


@pytest.mark.parametrize("audio_format", FORMATS)
def test_every_format_decodes_elsewhere_and_leaves_early(audio_format):
    pcm = tone()
    pieces = encode(audio_format, pcm)
    whole = b"".join(pieces)
    early = sum(map(len, pieces[: len(pieces) // 2]))
    assert early > 0.3 * len(whole)
    assert sum(map(len, pieces[:3])) > 0
    if audio_format == "pcm":
        decoded = from_s16le(whole)
    else:
        with av.open(io.BytesIO(whole)) as container:
            source_rate = container.streams.audio[0].rate
            frames = [f.to_ndarray() for f in container.decode(audio=0)]
        assert abs(sum(f.shape[1] for f in frames) / source_rate - 2.0) < 0.1
        decoded = decode_audio(whole, RATE)
    assert abs(len(decoded) / RATE - 2.0) < 0.1
    spectrum = np.abs(np.fft.rfft(decoded[2400:26400]))
    assert np.argmax(spectrum) == pytest.approx(440, abs=2)


@pytest.mark.parametrize("audio_format", ["wav", "mp3", "opus"])
def test_soundfile_opens_streamed_files(audio_format):
    pcm, rate = sf.read(io.BytesIO(b"".join(encode(audio_format, tone()))))
    assert rate == RATE
    assert abs(len(pcm) / RATE - 2.0) < 0.1


@pytest.mark.parametrize("audio_format", ["wav", "flac"])
def test_soundfile_opens_saved_files_whose_length_was_filled_in(audio_format):
    content = b"".join(encode(audio_format, tone()))
    pcm, _ = sf.read(io.BytesIO(with_length(content[:64], 2 * RATE) + content[64:]))
    assert len(pcm) == 2 * RATE


@pytest.mark.parametrize("audio_format", FORMATS)
def test_nothing_written_still_finishes(audio_format):
    stream_encoder(audio_format, RATE).finish()


def test_unknown_format():
    with pytest.raises(InvalidRequest, match="ogg"):
        stream_encoder("ogg", RATE)


def test_lossless_formats_keep_every_sample():
    pcm = tone()
    for audio_format in ("wav", "flac"):
        decoded = decode_audio(b"".join(encode(audio_format, pcm)), RATE)
        assert np.abs(decoded - pcm).max() < 1e-4


def test_pcm_is_24_khz_whatever_the_model_makes():
    encoder = stream_encoder("pcm", 48_000)
    content = encoder.write(tone(1.0, 48_000)) + encoder.finish()
    assert len(content) == 2 * 24_000


def test_streamed_resampling_equals_whole():
    pcm = np.random.default_rng(0).standard_normal(44_100).astype(np.float32)
    stream = StreamResampler(44_100, 16_000)
    pieces = [stream.write(pcm[i : i + 777]) for i in range(0, len(pcm), 777)]
    joined = np.concatenate([*pieces, stream.finish()])
    np.testing.assert_array_equal(joined, resample(pcm, 44_100, 16_000))


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
def test_stereo_of_every_sample_type_mixes_to_mono(subtype):
    buffer = io.BytesIO()
    sf.write(buffer, np.stack([tone(1.0), -0.5 * tone(1.0)], 1), RATE, subtype, format="WAV")
    decoded = decode_audio(buffer.getvalue(), RATE)
    assert np.abs(decoded - 0.25 * tone(1.0)).max() < 0.01


def test_decoding_equals_soundfile_and_librosa_resampling():
    buffer = io.BytesIO()
    sf.write(buffer, tone(1.0, 44_100), 44_100, "PCM_16", format="WAV")
    read, _ = sf.read(io.BytesIO(buffer.getvalue()), dtype="float32")
    np.testing.assert_array_equal(
        decode_audio(buffer.getvalue(), 16_000), resample(read, 44_100, 16_000)
    )


def cut_flac() -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, RATE).astype(np.float32)
    sf.write(buffer, noise, RATE, format="FLAC")
    return buffer.getvalue()[: len(buffer.getvalue()) // 2]


def forged_wav(channels: int = 1, rate: int = RATE, bits: int = 16, size: int = 4000) -> bytes:
    align = channels * bits // 8
    head = struct.pack("<HHIIHH", 1, channels, rate, (rate * align) % 2**32, align % 2**16, bits)
    body = b"\1\2" * 2000
    return (
        b"RIFF" + struct.pack("<I", size + 36) + b"WAVEfmt " + struct.pack("<I", 16) + head
        + b"data" + struct.pack("<I", size) + body
    )  # fmt: skip


BAD_FILES = {
    "empty": b"",
    "text": b"this is not audio at all, " * 40,
    "html": b"<html><body>" + b"x" * 4000,
    "playlist": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
    "concat": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "zero bytes": bytes(4096),
    "cut wav": wav_bytes(tone())[:20_000],
    "cut wav header": wav_bytes(tone())[:30],
    "no samples": wav_bytes(np.zeros(0, np.float32)),
    "cut flac": cut_flac(),
    "0 Hz": forged_wav(rate=0),
    "65535 channels": forged_wav(channels=65_535),
    "0 bits": forged_wav(bits=0),
    "655350 Hz": forged_wav(rate=655_350),
    "mp4 without moov": b"\0\0\0\x18ftypisom\0\0\2\0isomiso2" + b"\0\0\1\0mdat" + bytes(248),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused(name):
    with pytest.raises(InvalidAudio) as caught:
        decode_audio(BAD_FILES[name], 16_000)
    assert str(caught.value)


def test_limits_hold_while_decoding():
    content = b"".join(encode("opus", np.zeros(RATE * 30, np.float32)))
    with pytest.raises(TooLarge, match="longer"):
        decode_audio(content, 16_000, limits=DecodeLimits(max_audio_s=10))
    with pytest.raises(TooLarge, match="bytes"):
        decode_audio(content, 16_000, limits=DecodeLimits(max_decoded_bytes=100_000))


def test_a_missing_file_is_said_so(tmp_path):
    with pytest.raises(InvalidAudio, match="cannot read"):
        decode_audio(tmp_path / "none.wav", 16_000)


@pytest.mark.parametrize("speed", [0.25, 0.5, 0.9, 1.0, 1.5, 2.0, 4.0])
def test_tempo_changes_length_and_keeps_pitch(speed):
    pcm = tone(3.0)
    tempo = StreamTempo(RATE, speed)
    pieces = [tempo.write(pcm[i : i + 1920]) for i in range(0, len(pcm), 1920)]
    joined = np.concatenate([*pieces, tempo.finish()])
    assert len(joined) / RATE == pytest.approx(3.0 / speed, abs=0.1)
    middle = joined[len(joined) // 4 :][: RATE // 4]
    assert np.argmax(np.abs(np.fft.rfft(middle))) * 4 == pytest.approx(440, abs=8)
