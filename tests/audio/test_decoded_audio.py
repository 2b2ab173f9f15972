"""Audio of any length in little memory: the same samples, in an unnamed private file."""

from __future__ import annotations

import gc
import sys
import threading

import numpy as np
import pytest

from izwi.audio import decoded_audio
from izwi.audio.decoded_audio import DecodedAudio, within_full_scale
from izwi.audio.split import split_at_silence
from izwi.errors import IzwiError, Overloaded
from tests.nameless import nameless_files

RATE = 16_000


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    monkeypatch.setattr(decoded_audio, "MAX_MEMORY_SAMPLES", 10_000)


@pytest.fixture
def samples():
    return np.random.default_rng(1).normal(0, 0.4, 3 * 160_000).astype(np.float32)


def blocks(samples, size=4096):
    return (samples[at : at + size] for at in range(0, len(samples), size))


@pytest.mark.parametrize("length", [1, 9_999, 10_000, 10_001, 480_000])
def test_it_is_read_as_it_was_written(samples, tmp_path, length):
    samples = samples[:length]
    with DecodedAudio(tmp_path / "home").write_all(blocks(samples)) as audio:
        assert len(audio) == length
        assert audio[:].dtype == np.float32
        np.testing.assert_array_equal(audio[:], samples)
        for start, stop in ((0, 1), (length // 2, length), (7, 5000), (-3, None), (5, 2)):
            np.testing.assert_array_equal(audio[start:stop], samples[start:stop])
        with pytest.raises(ValueError):
            audio[::2]
    with pytest.raises(ValueError):
        audio[:1]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_its_file_has_no_name_and_goes_with_it(samples, tmp_path):
    home = tmp_path / "home"
    with DecodedAudio(home).write_all(blocks(samples[:10_000])):
        assert not home.exists()  # in memory
    audio = DecodedAudio(home).write_all(blocks(samples))
    assert len(nameless_files(home)) == 1
    assert not list(home.iterdir())
    audio.close()
    audio.close()
    assert not nameless_files(home)
    audio = DecodedAudio(home).write_all(blocks(samples))
    del audio  # nobody was left to close it
    gc.collect()
    assert not nameless_files(home)


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
def test_a_full_disk_raises_while_writing(samples, tmp_path):
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(Overloaded, match="disk"):
            DecodedAudio(tmp_path).write_all(blocks(samples))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
    if sys.platform == "linux":
        assert not nameless_files(tmp_path)


def test_a_folder_that_cannot_be(samples, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(IzwiError, match="cannot be kept"):
        DecodedAudio(tmp_path / "file" / "home").write_all(blocks(samples))


def test_a_source_that_fails_closes_it(samples, tmp_path):
    def broken():
        yield from blocks(samples)
        raise RuntimeError("a bug")

    audio = DecodedAudio(tmp_path)
    with pytest.raises(RuntimeError):
        audio.write_all(broken())
    with pytest.raises(ValueError):
        audio[:1]


def test_several_threads_read_at_a_time(samples, tmp_path):
    wrong = []

    def read(seed):
        rng = np.random.default_rng(seed)
        for start in rng.integers(0, 400_000, 100).tolist():
            part = slice(start, start + 50_000)
            wrong.extend([] if np.array_equal(audio[part], samples[part]) else [start])

    with DecodedAudio(tmp_path).write_all(blocks(samples)) as audio:
        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.parametrize("gain", [0.1, 10.0])
def test_audio_over_full_scale_is_scaled_as_a_whole(samples, tmp_path, monkeypatch, gain):
    monkeypatch.setattr(decoded_audio, "_BLOCK_SAMPLES", 100_001)
    samples = samples * np.float32(gain)
    peak = np.abs(samples).max()
    expected = samples / peak if peak > 1.0 else samples
    with DecodedAudio(tmp_path).write_all(blocks(samples)) as audio:
        for whole in (within_full_scale(audio), within_full_scale(samples)):
            assert len(whole) == len(samples)
            np.testing.assert_array_equal(whole[:], expected)
            np.testing.assert_array_equal(whole[100_000:300_000], expected[100_000:300_000])
    assert len(within_full_scale(np.zeros(0, np.float32))) == 0


class Counted:
    """Samples that count how many of them were read."""

    num_read = most_read = 0

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, part):
        size = len(self.samples[part])
        self.num_read, self.most_read = self.num_read + size, max(self.most_read, size)
        return self.samples[part]


@pytest.mark.parametrize("overrun", [False, True])
def test_cuts_are_the_same_and_read_one_piece_at_a_time(samples, tmp_path, overrun):
    options = {"limit_s": 4.0, "search_s": 0.5, "overrun": overrun}
    with DecodedAudio(tmp_path).write_all(blocks(samples)) as audio:
        counted = Counted(audio)
        pieces = split_at_silence(counted, RATE, **options)
        assert pieces == split_at_silence(samples, RATE, **options)
    assert len(pieces) > 6
    assert counted.most_read <= 5 * RATE
    assert counted.num_read <= 1.25 * len(samples)
