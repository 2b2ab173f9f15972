"""Which backend a device gets, and the errors if it is not available."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from izwi.backends import choice
from izwi.backends.choice import open_backend
from izwi.errors import InvalidRequest
from izwi.recording.recorder import platform_of
from izwi_api.cli.main import app
from tests.backends.kinds import backend_of, each_backend


def test_the_device_names_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    backend_of("mlx")  # skips
    assert open_backend("mlx").device_name == "mlx"
    assert open_backend("cpu").device_name == "cpu"
    monkeypatch.setattr(choice, "_has_metal", lambda: True)
    assert open_backend("auto").device_name == "mlx"
    assert open_backend("cpu").device_name == "cpu"
    monkeypatch.setattr(choice, "_has_metal", lambda: False)
    assert open_backend("auto").device_name != "mlx"


def test_mlx_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda _: None)
    with pytest.raises(InvalidRequest, match=r"izwi\[mlx\]"):
        open_backend("mlx")
    assert open_backend("cpu").device_name == "cpu"


@each_backend
def test_recordings_name_what_decides_the_last_bits(backend: str) -> None:
    known = platform_of(backend_of(backend, "bfloat16"), "int8")
    assert "bfloat16 with int8 weights" in known
    assert f"{backend} " in known


def test_weights_that_mlx_lacks_are_reported_in_one_line() -> None:
    backend_of("mlx")
    result = CliRunner().invoke(app, ["serve", "--device", "mlx", "--weights", "fp8"])
    assert result.exit_code == 2, result.output
    assert "weights 'fp8' are not available with MLX: use auto, float, int8, int4" in result.stderr
    assert result.stderr.strip().count("\n") == 0


def test_the_loop_and_its_planning_load_no_library_of_arrays() -> None:
    modules = (
        "izwi.engine.engine, izwi.engine.model_worker, izwi.runner.runner, izwi.backends.choice"
    )
    code = f"import sys, {modules}; print(*({{'torch', 'mlx'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("device", "num_gpus", "devices"),
    [
        ("auto", 0, ["auto"] * 3),
        ("auto", 1, ["auto"] * 3),
        ("auto", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda", 4, ["cuda:0", "cuda:1", "cuda:2"]),
        ("cuda:1", 4, ["cuda:1"] * 3),
        ("cpu", 4, ["cpu"] * 3),
    ],
)
def test_engines_are_spread_over_the_gpus(monkeypatch, device, num_gpus, devices):
    monkeypatch.setattr("izwi.backends.torch.backend.num_gpus", lambda: num_gpus)
    monkeypatch.setattr(choice, "_has_metal", lambda: False)
    assert [choice.spread_device(device, number) for number in range(3)] == devices
