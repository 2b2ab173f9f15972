"""Audio on the wire: how it is cut changes nothing, and G.711 equals FFmpeg's."""

from __future__ import annotations

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.audio.g711 import decode_g711, encode_g711
from izwi.audio.pcm import to_s16le
from izwi_api.realtime.protocol.formats import FORMATS, InputDecoder, OutputEncoder, RecentAudio
from tests.examples import examples

LAWS = {"mu": "pcm_mulaw", "a": "pcm_alaw"}


@pytest.mark.parametrize("law", LAWS)
def test_g711_is_decoded_as_by_ffmpeg(law):
    data = bytes(range(256))
    context = av.CodecContext.create(LAWS[law], "r")
    context.sample_rate, context.layout = 8000, "mono"
    (frame,) = context.decode(av.Packet(data))
    theirs = frame.to_ndarray().reshape(-1)
    np.testing.assert_array_equal(decode_g711(data, law), (theirs / 32768).astype(np.float32))


@pytest.mark.parametrize("law", LAWS)
def test_g711_is_encoded_to_the_nearest_value(law):
    values = np.sort(decode_g711(bytes(range(256)), law))
    samples = np.linspace(-1.2, 1.2, 10_001).astype(np.float32)
    ours = decode_g711(encode_g711(samples, law), law)
    clipped = np.clip(samples, -1, 1)
    nearest = np.abs(clipped[:, None] - values[None]).min(axis=1)
    assert (np.abs(ours - clipped) <= nearest + 3 / 32768).all()  # scaled to 16 bits first


@pytest.mark.parametrize("law", LAWS)
def test_silence_stays_silence(law):
    assert np.abs(decode_g711(encode_g711(np.zeros(9, np.float32), law), law)).max() < 3e-4


AUDIO = np.random.default_rng(5).uniform(-0.9, 0.9, 6000).astype(np.float32)
CUTS = st.lists(st.integers(0, 12_000), max_size=12).map(sorted)


@examples(30)
@given(st.sampled_from(sorted(FORMATS)), CUTS)
def test_decoding_does_not_depend_on_how_input_is_cut(name, cuts):
    wire = FORMATS[name]
    data = wire.encode(AUDIO)
    whole = InputDecoder(wire).write(data)
    decoder, pieces = InputDecoder(wire), []
    for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
        pieces.append(decoder.write(data[start:stop]))
    joined = np.concatenate(pieces)
    # the resampler may keep a little more back at the end of small pieces
    assert abs(len(joined) - len(whole)) <= 64
    count = min(len(joined), len(whole))
    np.testing.assert_allclose(joined[:count], whole[:count], atol=1e-6)


@examples(30)
@given(st.sampled_from(sorted(FORMATS)), CUTS)
def test_encoding_does_not_depend_on_how_output_is_cut(name, cuts):
    def encoded(cuts):
        encoder = OutputEncoder(FORMATS[name], 24_000)
        pairs = zip([0, *cuts], [*cuts, len(AUDIO)], strict=True)
        return b"".join(encoder.write(AUDIO[a:b]) for a, b in pairs) + encoder.finish()

    whole = encoded([])
    assert encoded([cut // 2 for cut in cuts]) == whole
    assert FORMATS[name].duration_ms(len(whole)) == pytest.approx(250, abs=0.2)


def test_pcm_at_its_own_rate_is_not_resampled():
    encoder = OutputEncoder(FORMATS["audio/pcm"], 24_000)
    assert encoder.write(AUDIO) + encoder.finish() == to_s16le(AUDIO)


def test_half_a_sample_waits_for_the_other_half():
    wire = FORMATS["audio/pcm"]
    data = wire.encode(AUDIO)
    decoder = InputDecoder(wire)
    joined = np.concatenate([decoder.write(data[:1001]), decoder.write(data[1001:])])
    np.testing.assert_allclose(joined, InputDecoder(wire).write(data)[: len(joined)], atol=1e-6)


def test_recent_audio_is_read_by_sample_index():
    recent = RecentAudio(100)
    for start in range(0, 1000, 30):
        recent.write(np.arange(start, min(start + 30, 1000), dtype=np.float32))
    assert recent.end == 1000
    assert recent.read(950, 960).tolist() == list(range(950, 960))
    assert recent.read(0, 905).tolist() == list(range(900, 905))
    assert recent.read(990, 2000).tolist() == list(range(990, 1000))
