"""Compile CUDA C++ with the compiler that comes with torch (NVRTC), load it and launch it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as Seq
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path

import torch

_ATTRIBUTE_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CompileError(Exception):
    """Code could not be compiled, loaded or launched; the message says why."""


def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a device."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def compile_cuda(source: Path, header: Path, options: Seq[str], device: torch.device) -> bytes:
    """Compile a file and its header to the machine code of a device.

    Raises:
        CompileError: The compiler is missing, or refuses the code.
    """
    nvrtc = _nvrtc()
    major, minor = torch.cuda.get_device_capability(device)
    program = c_void_p()
    names, texts = (c_char_p * 1)(header.name.encode()), (c_char_p * 1)(header.read_bytes())
    code = source.read_bytes()
    _check(
        nvrtc.nvrtcCreateProgram(byref(program), code, source.name.encode(), 1, texts, names),
        "nvrtcCreateProgram",
    )
    try:
        given = [f"--gpu-architecture=sm_{major}{minor}", "--std=c++17", *options]
        values = (c_char_p * len(given))(*(option.encode() for option in given))
        if nvrtc.nvrtcCompileProgram(program, len(given), values):
            raise CompileError(_text(nvrtc, "nvrtcGetProgramLog", program).decode(errors="replace"))
        return _text(nvrtc, "nvrtcGetCUBIN", program)
    finally:
        nvrtc.nvrtcDestroyProgram(byref(program))


class DeviceFunction:
    """A kernel, loaded in the current context."""

    def __init__(self, code: bytes, name: str, shared_bytes: int, device: torch.device):
        """Load.

        Raises:
            CompileError: The device refuses the code, or has not this much shared memory.
        """
        self._cuda, self._shared_bytes = ctypes.CDLL("libcuda.so.1"), shared_bytes
        with torch.cuda.device(device):
            torch.cuda.current_stream(device).synchronize()  # makes the context
            self._module, self._function = c_void_p(), c_void_p()
            _check(self._cuda.cuModuleLoadData(byref(self._module), code), "cuModuleLoadData")
            _check(
                self._cuda.cuModuleGetFunction(byref(self._function), self._module, name.encode()),
                "cuModuleGetFunction",
            )
            _check(
                self._cuda.cuFuncSetAttribute(
                    self._function, _ATTRIBUTE_SHARED_BYTES, c_int(shared_bytes)
                ),
                "cuFuncSetAttribute",
            )

    def blocks_together(self, threads: int) -> int:
        """Return how many blocks fit on one multiprocessor at once."""
        count = c_int()
        _check(
            self._cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                byref(count), self._function, threads, c_size_t(self._shared_bytes)
            ),
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        )
        return count.value

    def launch_together(self, blocks: int, threads: int, params: ctypes.Structure) -> None:
        """Launch blocks that all run at once, on the current stream.

        Raises:
            CompileError: They do not all fit.
        """
        arguments = (c_void_p * 1)(ctypes.cast(byref(params), c_void_p))
        stream = c_void_p(torch.cuda.current_stream().cuda_stream)
        grid, block = (blocks, 1, 1), (threads, 1, 1)
        _check(
            self._cuda.cuLaunchCooperativeKernel(
                self._function, *grid, *block, self._shared_bytes, stream, arguments
            ),
            "cuLaunchCooperativeKernel",
        )


def _nvrtc() -> ctypes.CDLL:
    """Load the compiler, which torch for CUDA brings with it."""
    version = (torch.version.cuda or "").split(".")[0]
    nvidia = Path(torch.__file__).parents[1] / "nvidia"
    found = sorted(nvidia.glob(f"*/lib/libnvrtc.so.{version}"))
    for name in (*map(str, found), f"libnvrtc.so.{version}", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CompileError(f"no compiler: libnvrtc.so.{version} is not there")


def _text(nvrtc: ctypes.CDLL, name: str, program: c_void_p) -> bytes:
    size = c_size_t()
    _check(getattr(nvrtc, f"{name}Size")(program, byref(size)), name)
    text = ctypes.create_string_buffer(size.value)
    _check(getattr(nvrtc, name)(program, text), name)
    return text.raw


def _check(code: int, what: str) -> None:
    if code:
        raise CompileError(f"{what} failed with {code}")
