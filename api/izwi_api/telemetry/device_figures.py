"""How busy the GPUs of this machine are, by NVML, if the extra `nvml` is installed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any, NamedTuple

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)


class _Quantity(NamedTuple):
    """What is read of each GPU: the metric's name and help, and how NVML is asked for it."""

    name: str
    help: str
    read: Callable[[Any, Any], float]


_QUANTITIES = (
    _Quantity(
        "hw_gpu_utilization_ratio",
        "Share of recent time in which the GPU ran anything.",
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    ),
    _Quantity(
        "hw_gpu_memory_usage_bytes",
        "Bytes of the GPU's memory that all programs hold.",
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    ),
    _Quantity(
        "hw_gpu_memory_limit_bytes",
        "Bytes of the GPU's memory.",
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total,
    ),
    _Quantity(
        "hw_power_watts",
        "Power that the GPU takes, in watts.",
        lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    ),
)


def open_device_figures() -> DeviceFigures | None:
    """Return figures of this machine's GPUs, or None if the extra or the driver is missing."""
    if find_spec("pynvml") is None:
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        return DeviceFigures(pynvml)
    except pynvml.NVMLError as error:
        logger.info("no figures of GPUs: %s", error)
        return None


class DeviceFigures(Collector):
    """Figures of each GPU, read on demand under the names of the conventions for hardware.

    Args:
        nvml: The module `pynvml`, initialized.
    """

    def __init__(self, nvml: Any):
        self._nvml = nvml
        self._gpus = list(map(self._described, range(nvml.nvmlDeviceGetCount())))

    def collect(self) -> Iterable[Metric]:
        """Yield a metric for each quantity; GPUs that do not report it are left out."""
        for quantity in _QUANTITIES:
            metric = GaugeMetricFamily(quantity.name, quantity.help, labels=["hw_id", "hw_name"])
            for gpu, labels in self._gpus:
                try:
                    metric.add_metric(labels, quantity.read(self._nvml, gpu))
                except self._nvml.NVMLError:  # such as the utilization of a GPU with partitions
                    continue
            yield metric

    def _described(self, number: int) -> tuple[Any, list[str]]:
        gpu = self._nvml.nvmlDeviceGetHandleByIndex(number)
        name = f"{number} {self._nvml.nvmlDeviceGetName(gpu)}"
        return gpu, [self._nvml.nvmlDeviceGetUUID(gpu), name]
