"""`izwi serve --weights` and `--attention` reach the models; unavailable ones are refused."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from izwi.backends.torch.backend import torch_backend
from izwi.backends.torch.quantized import QuantizedWeight
from izwi.model.protocol import Model
from izwi.recording.recorder import platform_of
from izwi_api.cli.main import app
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.local_services import open_services

CPU = torch_backend("cpu")


def quantized_weights(model: Model) -> int:
    return sum(isinstance(weight, QuantizedWeight) for weight in model._weights.values())


def test_the_models_of_an_api_server_have_the_weights_that_were_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("IZWI_HOME", str(tmp_path))
    for weights in ("auto", "int8"):
        services = open_services(
            ("izwi-tiny-tts", "izwi-tiny-asr"), RuntimeOptions("cpu", weights=weights)
        )
        counts = list(map(quantized_weights, services.registry.models.values()))
        assert all(counts) if weights == "int8" else not any(counts), counts


def test_an_unknown_kind_fails_with_one_line():
    result = CliRunner().invoke(app, ["serve", "--device", "cpu", "--weights", "int3"])
    assert result.exit_code == 2, result.output
    assert "weights must be one of auto, float, int8, fp8, int4, got 'int3'" in result.stderr
    assert result.stderr.strip().count("\n") == 0


def test_traces_tell_quantized_weights_apart():
    assert platform_of(CPU, "int8") != platform_of(CPU)
    assert "float32 with int8 weights" in platform_of(CPU, "int8")


@pytest.mark.parametrize(
    ("asked", "reported"),
    [
        ("flash", "attention must be one of auto, torch, triton, sgl-kernel, got 'flash'"),
        pytest.param("triton", "attention 'triton' is not available here", marks=pytest.mark.slow),
    ],
)
def test_unavailable_attention_fails_with_one_line(asked: str, reported: str):
    result = CliRunner().invoke(app, ["serve", "--device", "cpu", "--attention", asked])
    assert result.exit_code == 2, result.output
    assert reported in result.stderr
    assert result.stderr.strip().count("\n") == 0


def test_a_cpu_attends_with_torch():
    for attention in ("auto", "torch"):
        assert torch_backend("cpu", attention=attention).ops.attends_with == "torch"
    assert "attention by triton" in platform_of(CPU, attention="triton")
