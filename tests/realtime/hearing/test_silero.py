"""Silero's detector: the network in numpy against torch's layers, and how a session gets it."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import numpy as np
import pytest
import soxr
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from safetensors.torch import save_file
from typer.testing import CliRunner

from izwi.errors import InvalidRequest
from izwi_api import settings as server_settings
from izwi_api.cli import serve as command
from izwi_api.cli.main import app
from izwi_api.environment import read_settings
from izwi_api.realtime.hearing import silero
from izwi_api.realtime.hearing.silero import WINDOW, Silero
from izwi_api.realtime.hearing.vad import FRAME_SAMPLES, VoiceDetector
from izwi_api.realtime.protocol.settings import RealtimeSettings, as_json, updated, vad_of
from tests.realtime.world import recorded

RATE = 16_000
SHAPES = {
    "stft_conv.weight": (258, 1, 256),
    "conv1.weight": (128, 129, 3),
    "conv2.weight": (64, 128, 3),
    "conv3.weight": (64, 64, 3),
    "conv4.weight": (128, 64, 3),
    "lstm_cell.weight_ih": (512, 128),
    "lstm_cell.weight_hh": (512, 128),
    "lstm_cell.bias_ih": (512,),
    "lstm_cell.bias_hh": (512,),
    "final_conv.weight": (1, 128, 1),
    "final_conv.bias": (1,),
}
SHAPES |= {f"conv{n}.bias": SHAPES[f"conv{n}.weight"][:1] for n in (1, 2, 3, 4)}


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """Random weights in the place of the package's."""
    generator = torch.Generator().manual_seed(0)
    made = {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in SHAPES.items()}
    (tmp_path / "data").mkdir()
    save_file(made, tmp_path / silero._FILE)
    spec = ModuleSpec("silero_vad", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(silero, "find_spec", lambda _: spec)
    monkeypatch.setattr(server_settings, "find_spec", lambda _: spec)
    silero._load.cache_clear()
    yield made
    silero._load.cache_clear()


def by_torch(weights, samples):
    """The network with torch's layers: the probability of each window of 512 samples."""
    cell = torch.nn.LSTMCell(128, 128)
    cell.load_state_dict({
        name.removeprefix("lstm_cell."): value
        for name, value in weights.items()
        if name.startswith("lstm_cell.")
    })  # fmt: skip
    state, found = None, []
    audio = F.pad(torch.from_numpy(samples), (64, 0))
    for start in range(0, len(audio) - 64 - WINDOW + 1, WINDOW):
        x = F.pad(audio[None, None, start : start + 64 + WINDOW], (0, 64), mode="reflect")
        x = F.conv1d(x, weights["stft_conv.weight"], stride=128)
        x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
        for number, stride in ((1, 1), (2, 2), (3, 2), (4, 1)):
            kernel, bias = weights[f"conv{number}.weight"], weights[f"conv{number}.bias"]
            x = F.conv1d(x, kernel, bias, stride=stride, padding=1).relu()
        state = cell(x[..., 0], state)
        last = F.conv1d(
            state[0].relu()[..., None], weights["final_conv.weight"], weights["final_conv.bias"]
        )
        found.append(float(last.sigmoid()))
    return np.array(found)


def test_the_network_equals_torchs_layers(weights):
    samples = np.random.default_rng(1).normal(size=40 * WINDOW).astype(np.float32) * 0.1
    with torch.no_grad():
        expected = by_torch(weights, samples)
    detector = Silero()
    ours = [detector.judge(part) for part in samples.reshape(-1, WINDOW)]
    assert expected.std() > 0.01
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_a_frame_has_the_probability_of_the_newest_whole_window(weights):
    samples = np.random.default_rng(1).normal(size=4 * 5 * WINDOW).astype(np.float32) * 0.1
    detector = Silero()
    windows = [detector.judge(part) for part in samples.reshape(-1, WINDOW)]
    detector = Silero()
    frames = [detector.judge(part) for part in samples.reshape(-1, FRAME_SAMPLES)]
    whole = [FRAME_SAMPLES * (n + 1) // WINDOW for n in range(len(frames))]
    assert frames == [windows[n - 1] if n else 0.0 for n in whole]


def test_two_streams_do_not_share_their_state(weights):
    draw = np.random.default_rng(2)
    mine, other = draw.normal(size=(2, 8, WINDOW)).astype(np.float32) * 0.1
    alone = Silero()
    expected = [alone.judge(part) for part in mine]
    ours, theirs = Silero(), Silero()
    found = [(ours.judge(a), theirs.judge(b))[0] for a, b in zip(mine, other, strict=True)]
    assert found == expected


def test_another_detector_goes_on_at_the_same_position(weights):
    detector = VoiceDetector()
    audio = np.zeros(RATE // 4 + 7, np.float32)
    ends = [frame.end for frame in detector.write(audio)]
    detector.use("silero")
    ends += [frame.end for frame in detector.write(audio)]
    assert ends == [FRAME_SAMPLES * (n + 1) for n in range(len(ends))]


@pytest.mark.parametrize("kind", ["server_vad", "semantic_vad"])
def test_a_session_asks_for_its_detector(weights, kind):
    before = RealtimeSettings()
    assert vad_of(before, "webrtc") == "webrtc"
    assert "vad" not in as_json(before)["audio"]["input"]["turn_detection"]
    change = {"audio": {"input": {"turn_detection": {"type": kind, "vad": "silero"}}}}
    after = updated(before, change)
    assert vad_of(after, "webrtc") == "silero"
    assert as_json(after)["audio"]["input"]["turn_detection"]["vad"] == "silero"
    off = updated(after, {"audio": {"input": {"turn_detection": None}}})
    assert vad_of(off, "silero") == "silero"


def test_a_session_is_told_that_silero_is_missing(monkeypatch):
    monkeypatch.setattr(server_settings, "find_spec", lambda _: None)
    change = {"audio": {"input": {"turn_detection": {"vad": "silero"}}}}
    with pytest.raises(InvalidRequest, match=r"pip install 'izwi\[silero\]'") as refused:
        updated(RealtimeSettings(), change)
    assert refused.value.param == "session.audio.input.turn_detection"


@pytest.mark.parametrize(
    ("options", "environment", "vad"),
    [
        ([], {}, "webrtc"),
        ([], {"IZWI_LIVE_VAD": "silero"}, "silero"),
        (["--live-vad", "webrtc"], {"IZWI_LIVE_VAD": "silero"}, "webrtc"),
        (["--live-vad", "silero"], {}, "silero"),
    ],
)
def test_the_option_of_serve_overrides_the_environment(
    weights, monkeypatch, options, environment, vad
):
    started = []
    monkeypatch.setattr(command, "_run", lambda serve_options, *_: started.append(serve_options))
    ended = CliRunner().invoke(app, ["serve", *options], env=environment)
    assert ended.exit_code == 0, ended.output
    assert started[0].settings.live_vad == vad


@pytest.mark.parametrize(
    ("name", "message"), [("silero", "not installed"), ("loud", "must be webrtc or silero")]
)
def test_a_server_refuses_a_detector_that_it_does_not_have(monkeypatch, name, message):
    monkeypatch.setattr(server_settings, "find_spec", lambda _: None)
    monkeypatch.setattr(command, "_run", lambda *_: None)
    ended = CliRunner().invoke(app, ["serve", "--live-vad", name])
    assert ended.exit_code == 2
    assert message in ended.output
    assert "--live-vad" in ended.output


def test_a_variable_with_a_detector_that_there_is_not_is_named(monkeypatch):
    with pytest.raises(InvalidRequest, match="IZWI_LIVE_VAD"):
        read_settings({"IZWI_LIVE_VAD": "loud"})
    monkeypatch.setattr(server_settings, "find_spec", lambda _: None)
    ended = CliRunner().invoke(app, ["serve"], env={"IZWI_LIVE_VAD": "silero"})
    assert ended.exit_code == 2
    assert "IZWI_LIVE_VAD" in ended.output


@pytest.mark.skipif(
    importlib.util.find_spec("silero_vad") is None, reason="pip install 'izwi[silero]'"
)
@pytest.mark.parametrize("noise_db", [-60, -45])
def test_speech_is_detected_and_noise_is_not(noise_db):
    speech = soxr.resample(recorded("question"), 24_000, RATE).astype(np.float32)
    around = np.zeros(RATE, np.float32)
    samples = np.concatenate([around, speech, around])
    noise = np.random.default_rng(3).normal(size=len(samples)) * 10 ** (noise_db / 20)
    frames = VoiceDetector("silero").write((samples + noise).astype(np.float32))
    found = np.array([frame.speech for frame in frames]) >= 0.5
    first, last = RATE // FRAME_SAMPLES, (RATE + len(speech)) // FRAME_SAMPLES
    assert found[first + 10 : last - 10].mean() > 0.8
    assert not found[: first - 2].any()
    assert not found[last + 20 :].any()
