"""Figures of GPUs: what NVML says, under the names of the conventions; nothing without it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from izwi_api.serve.app import create_app
from izwi_api.settings import Settings
from izwi_api.telemetry import device_figures
from izwi_api.telemetry.device_figures import DeviceFigures, open_device_figures
from tests.api.conftest import FakeEngine, FakeRegistry

FIRST = {"hw_id": "GPU-a", "hw_name": "0 H100"}
SECOND = {"hw_id": "GPU-b", "hw_name": "1 H100"}


class NVMLError(Exception):
    pass


class Nvml:
    """The part of pynvml that is called; the second GPU does not say how busy it is."""

    NVMLError = NVMLError

    def __init__(self, count=2, error=None):
        self.count, self.error, self.percent = count, error, 40

    def nvmlInit(self):
        if self.error is not None:
            raise self.error

    def nvmlDeviceGetCount(self):
        return self.count

    def nvmlDeviceGetHandleByIndex(self, number):
        return "ab"[number]

    def nvmlDeviceGetName(self, gpu):
        return "H100"

    def nvmlDeviceGetUUID(self, gpu):
        return f"GPU-{gpu}"

    def nvmlDeviceGetUtilizationRates(self, gpu):
        if gpu == "b":
            raise NVMLError("not supported")
        return SimpleNamespace(gpu=self.percent)

    def nvmlDeviceGetMemoryInfo(self, gpu):
        return SimpleNamespace(used=3 << 30, total=80 << 30)

    def nvmlDeviceGetPowerUsage(self, gpu):
        return 250_500


@pytest.fixture
def installed(monkeypatch):
    def install(nvml):
        monkeypatch.setattr(device_figures, "find_spec", lambda name: name)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    return install


def test_each_gpu_has_its_values_at_the_time_of_the_reading() -> None:
    registry, nvml = CollectorRegistry(), Nvml()
    registry.register(DeviceFigures(nvml))
    read = registry.get_sample_value
    assert read("hw_gpu_utilization_ratio", FIRST) == 0.4
    nvml.percent = 90
    assert read("hw_gpu_utilization_ratio", FIRST) == 0.9
    assert read("hw_gpu_memory_usage_bytes", SECOND) == 3 << 30
    assert read("hw_gpu_memory_limit_bytes", SECOND) == 80 << 30
    assert read("hw_power_watts", SECOND) == 250.5


def test_what_a_gpu_does_not_say_is_left_out() -> None:
    registry = CollectorRegistry()
    registry.register(DeviceFigures(Nvml()))
    assert registry.get_sample_value("hw_gpu_utilization_ratio", SECOND) is None
    assert registry.get_sample_value("hw_power_watts", SECOND) is not None


def test_metrics_of_an_app_have_the_gpus_if_the_package_is_installed(installed, tmp_path) -> None:
    def shown():
        app = create_app(FakeEngine(), FakeRegistry(), Settings(home=tmp_path))
        return app.state.izwi.metrics.registry.get_sample_value("hw_power_watts", FIRST)

    assert shown() is None
    installed(Nvml())
    assert shown() == 250.5


def test_without_a_driver_there_are_none(installed) -> None:
    installed(Nvml(error=NVMLError("driver not loaded")))
    assert open_device_figures() is None


def test_without_the_package_nothing_is_imported() -> None:
    assert open_device_figures() is None
    assert "pynvml" not in sys.modules
