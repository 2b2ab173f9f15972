"""Files as people have them: sizes that a pipe could not fill in, joined files, several tracks."""

from __future__ import annotations

import io
import struct
from itertools import permutations

import av
import numpy as np
import pytest
import soundfile as sf
from hypothesis import given
from hypothesis import strategies as st

from izwi.audio.decode import decode_audio
from izwi.audio.downmix import Downmix
from izwi.audio.limits import DecodeLimits
from izwi.audio.pcm import to_s16le
from izwi.errors import InvalidAudio, TooLarge

RATE = 24_000


def tone(seconds=1.0, rate=RATE, hertz=440.0, level=0.3):
    time = np.arange(int(seconds * rate)) / rate
    return (level * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def wav(data, riff=None, size=None, magic=b"RIFF", more=b""):
    order = ">" if magic == b"RIFX" else "<"
    size = len(data) if size is None else size
    riff = 36 + len(data) + len(more) if riff is None else riff
    head = magic + struct.pack(order + "I", riff) + b"WAVEfmt "
    head += struct.pack(order + "IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    return head + b"data" + struct.pack(order + "I", size) + data + more


def written(samples, rate, subtype="PCM_16", **options):
    content = io.BytesIO()
    sf.write(content, samples, rate, subtype=subtype, **options)
    return content.getvalue()


def loudest_hertz(samples):
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return np.argmax(spectrum) * RATE / len(samples)


DATA = to_s16le(tone())
PLACEHOLDERS = {
    "both 2^32-1": (2**32 - 1, 2**32 - 1),
    "arecord": (0x80000024, 0x80000000),
    "pocket-tts": (2_000_000_036, 2_000_000_000),
    "2^32-1 and 36 less": (2**32 - 1, 2**32 - 1 - 36),
    "no size, 2^32-1": (0, 2**32 - 1),
    "the right size, 2^32-1": (36 + len(DATA), 2**32 - 1),
    "near 2^31": (0x7FFFFFFF, 0x7FFFFFFF - 36),
}


# -- sizes ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PLACEHOLDERS)
def test_a_size_that_was_not_filled_in_means_until_the_end(name):
    riff, size = PLACEHOLDERS[name]
    decoded = decode_audio(wav(DATA, riff, size), RATE)
    np.testing.assert_allclose(decoded, tone(), atol=1e-4)


@given(
    size=st.integers(2**20, 2**32 - 1),
    riff=st.sampled_from([0, 36 + len(DATA), 2**32 - 1, 0x80000024]),
)
def test_a_size_beyond_what_is_accepted_is_a_placeholder_and_a_smaller_one_is_not(size, riff):
    limits = DecodeLimits(max_decoded_bytes=1 << 30)
    content = wav(DATA, riff, size)
    if size > 1 << 30:
        assert len(decode_audio(content, RATE, limits=limits)) == RATE
    else:
        with pytest.raises(InvalidAudio, match="cut off"):
            decode_audio(content, RATE, limits=limits)


@pytest.mark.parametrize("riff", [35, 36 + len(DATA) + 1000])
def test_sizes_that_contradict_each_other_are_refused(riff):
    with pytest.raises(InvalidAudio, match="cut off"):
        decode_audio(wav(DATA, riff, 2**32 - 1), RATE)


# -- byte order ----------------------------------------------------------------------------------
@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
def test_a_big_endian_wav_is_decoded(subtype):
    stereo = np.stack([tone(), 0.5 * tone()], 1)
    big = written(stereo, RATE, subtype, format="WAV", endian="BIG")
    assert big[:4] == b"RIFX"
    little = written(stereo, RATE, subtype, format="WAV")
    np.testing.assert_array_equal(decode_audio(big, RATE), decode_audio(little, RATE))


def test_a_big_endian_wav_of_16_bits():
    data = np.frombuffer(DATA, "<i2").astype(">i2").tobytes()
    np.testing.assert_allclose(decode_audio(wav(data, magic=b"RIFX"), RATE), tone(), atol=1e-4)
    with pytest.raises(InvalidAudio, match="cut off"):
        decode_audio(wav(data, magic=b"RIFX")[:9000], RATE)


def test_a_big_endian_wav_that_is_compressed_is_refused():
    content = bytearray(wav(DATA, magic=b"RIFX"))
    struct.pack_into(">H", content, 20, 0x11)  # IMA ADPCM
    with pytest.raises(InvalidAudio, match="RIFX"):
        decode_audio(bytes(content), RATE)


# -- joined files --------------------------------------------------------------------------------
def assert_both(content):
    """One second of 440 Hz, then one of 660 Hz, but for a codec's delay."""
    decoded = decode_audio(content, RATE)
    assert len(decoded) == pytest.approx(2 * RATE, abs=0.2 * RATE)
    assert loudest_hertz(decoded[2400 : RATE - 2400]) == pytest.approx(440, abs=2)
    assert loudest_hertz(decoded[-RATE + 2400 : -2400]) == pytest.approx(660, abs=2)


LIST = b"LIST" + struct.pack("<I", 5) + b"INFOx"
FIRST_WAVS = {
    "plain": wav(DATA),
    "a chunk behind it": wav(DATA, more=LIST + b"\0"),
    "a chunk that is not padded": wav(DATA, more=LIST),
    "open": wav(DATA, 2**32 - 1, 2**32 - 1),
    "other rate": written(tone(rate=16_000), 16_000, format="WAV"),
    "big-endian": wav(np.frombuffer(DATA, "<i2").astype(">i2").tobytes(), magic=b"RIFX"),
    "float": written(tone(), RATE, "FLOAT", format="WAV"),
}


@pytest.mark.parametrize("name", FIRST_WAVS)
def test_all_of_several_wavs_that_were_joined_are_decoded(name):
    assert_both(FIRST_WAVS[name] + written(tone(hertz=660), RATE, format="WAV"))


def test_limits_are_those_of_the_whole():
    content = wav(DATA) * 3
    assert len(decode_audio(content, RATE, limits=DecodeLimits(max_audio_s=3))) == 3 * RATE
    with pytest.raises(TooLarge, match="longer"):
        decode_audio(content, RATE, limits=DecodeLimits(max_audio_s=2.5))
    with pytest.raises(TooLarge, match="bytes"):
        decode_audio(content, RATE, limits=DecodeLimits(max_decoded_bytes=5 * RATE))


def test_a_second_wav_that_is_cut_off_is_refused():
    with pytest.raises(InvalidAudio, match="cut off"):
        decode_audio(wav(DATA) + wav(DATA)[:20_000], RATE)


@pytest.mark.parametrize(("first", "second"), [*permutations((44_100, 22_050, 16_000), 2)])
@pytest.mark.parametrize("kind", ["mp3", "vorbis", "opus"])
def test_joined_files_of_several_sample_rates_are_decoded(kind, first, second):
    def made(rate, hertz):
        if kind == "mp3":
            return written(tone(1.0, rate, hertz), rate, "MPEG_LAYER_III", format="MP3")
        rate = rate if kind == "vorbis" else {44_100: 48_000, 22_050: 24_000}.get(rate, rate)
        return written(tone(1.0, rate, hertz), rate, kind.upper(), format="OGG")

    assert_both(made(first, 440) + made(second, 660))


def test_joined_mp3s_of_one_and_two_channels_are_decoded():
    stereo = np.stack([tone(hertz=660)] * 2, 1)
    first, second = (
        written(samples, RATE, "MPEG_LAYER_III", format="MP3") for samples in (tone(), stereo)
    )
    assert_both(first + second)


def test_a_short_vorbis_file_is_not_taken_for_a_long_one():
    """FFmpeg gives its last packet a duration of nearly 2^32 samples."""
    content = written(tone(1.0, 22_050), 22_050, "VORBIS", format="OGG")
    assert len(decode_audio(content, RATE)) == pytest.approx(RATE, abs=600)


# -- channels ------------------------------------------------------------------------------------
@pytest.mark.parametrize("gain", [-1.0, -0.9, -0.8, -1.2])
@pytest.mark.parametrize("codec", ["PCM_16", "VORBIS"])
def test_a_channel_that_is_the_others_opposite_does_not_silence_it(gain, codec):
    stereo = np.stack([tone(2.0), gain * tone(2.0)], 1)
    container = "WAV" if codec == "PCM_16" else "OGG"
    decoded = decode_audio(written(stereo, RATE, codec, format=container), RATE)
    middle = decoded[RATE // 4 : -RATE // 4]
    assert np.abs(middle).max() == pytest.approx(0.3 * max(1.0, -gain), rel=0.1)
    assert loudest_hertz(middle) == pytest.approx(440, abs=1)


@given(
    gains=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6),
    sizes=st.lists(st.integers(1, 9000), min_size=1, max_size=12),
    alike=st.booleans(),
)
def test_other_channels_are_averaged_however_they_come(gains, sizes, alike):
    rng = np.random.default_rng(len(sizes))
    size = sum(sizes)
    parts = rng.standard_normal((1 if alike else len(gains), size))
    channels = (np.array(gains)[:, None] * parts).astype(np.float32)
    downmix, stops = Downmix(8000), np.cumsum(sizes)
    blocks = [downmix.write(channels[:, b - n : b]) for n, b in zip(sizes, stops, strict=True)]
    mono = np.concatenate([*blocks, downmix.finish()])
    if size > 400:  # a few samples may cancel each other by chance
        np.testing.assert_array_equal(mono, channels.mean(0, dtype=np.float32))
    assert len(mono) == size


def test_the_sign_stays_and_changes_are_faded():
    """Channels that are opposite in the middle only: nowhere is there a step."""
    left = tone(6.0, 8000, 200)
    right = left.copy()
    right[2 * 8000 : 4 * 8000] *= -1.0
    # a little louder, now on one side and now on the other
    right[2 * 8000 :: 4000] *= 1.05
    downmix = Downmix(8000)
    mono = np.concatenate([downmix.write(np.stack([left, right])), downmix.finish()])
    assert np.abs(np.diff(mono)).max() < 1.3 * np.abs(np.diff(left)).max()
    opposite = slice(2 * 8000 + 80, 4 * 8000)  # after the fade
    np.testing.assert_allclose(mono[opposite], left[opposite], atol=0.02)


# -- tracks --------------------------------------------------------------------------------------
def film(tracks, codec="aac", container="mp4"):
    """A file of several audio tracks of a second, each at RATE."""
    content = io.BytesIO()
    with av.open(content, "w", format=container) as made:
        streams = [made.add_stream(codec, rate=RATE, layout="mono") for _ in tracks]
        for stream, samples in zip(streams, tracks, strict=True):
            frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
            frame.sample_rate = RATE
            for packet in [*stream.encode(frame), *stream.encode(None)]:
                made.mux(packet)
    return content.getvalue()


SILENCE = np.zeros(RATE, np.float32)
BEEP = np.concatenate([SILENCE[: RATE // 2], tone(0.5)])


@pytest.mark.parametrize(
    ("tracks", "hertz"),
    [
        ([SILENCE, tone()], 440),
        ([tone(), tone(hertz=660)], 440),
        ([BEEP, tone(hertz=660)], 440),
        ([SILENCE, SILENCE, tone(hertz=660), tone()], 660),
    ],
    ids=["behind silence", "the first", "the first, after silence", "the third"],
)
@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_the_first_track_that_is_not_silent_is_decoded(tracks, hertz, container):
    assert loudest_hertz(decode_audio(film(tracks, container=container), RATE)) == pytest.approx(
        hertz, abs=2
    )


def test_silent_tracks_are_a_silent_file():
    assert np.abs(decode_audio(film([SILENCE, SILENCE]), RATE)).max() == 0.0


def test_looking_for_sound_keeps_the_limits():
    tracks = [np.zeros(3 * RATE, np.float32), tone(3.0)]
    with pytest.raises(TooLarge, match="longer"):
        decode_audio(film(tracks), RATE, limits=DecodeLimits(max_audio_s=2))
