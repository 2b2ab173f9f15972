"""Compile CUDA C++ with the compiler that comes with torch (NVRTC), load it and launch it.

What was compiled is kept beside the kernels of Triton, so that `izwi warm` leaves both.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import tempfile
import time
from collections.abc import Sequence as Seq
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path

import torch
from triton import knobs

from izwi.backends.compilations import Compilation, report

logger = logging.getLogger(__name__)

_ATTRIBUTE_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CompileError(Exception):
    """Code could not be compiled, loaded or launched; the message says why."""


def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a device."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def compile_cuda(source: Path, header: Path, options: Seq[str], device: torch.device) -> bytes:
    """Return the machine code of a file and its header for a device, compiled once.

    Raises:
        CompileError: The compiler is missing, or refuses the code.
    """
    began_s = time.perf_counter()
    nvrtc = _nvrtc()
    major, minor = torch.cuda.get_device_capability(device)
    given = [f"--gpu-architecture=sm_{major}{minor}", "--std=c++17", *options]
    texts = source.read_bytes(), header.read_bytes()
    kept = _kept_at(source.stem, [*texts, *(option.encode() for option in given), _version(nvrtc)])
    known = kept.is_file()
    code = kept.read_bytes() if known else _compiled(nvrtc, source.name, header.name, texts, given)
    if not known:
        _keep(kept, code)
    taken_s = time.perf_counter() - began_s
    report(Compilation("loaded" if known else "compiled", source.stem, taken_s))
    return code


def _compiled(
    nvrtc: ctypes.CDLL, name: str, header: str, texts: tuple[bytes, bytes], options: Seq[str]
) -> bytes:
    program = c_void_p()
    names, includes = (c_char_p * 1)(header.encode()), (c_char_p * 1)(texts[1])
    created = nvrtc.nvrtcCreateProgram(byref(program), texts[0], name.encode(), 1, includes, names)
    _check(created, "nvrtcCreateProgram")
    try:
        values = (c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), values):
            raise CompileError(_text(nvrtc, "nvrtcGetProgramLog", program).decode(errors="replace"))
        return _text(nvrtc, "nvrtcGetCUBIN", program)
    finally:
        nvrtc.nvrtcDestroyProgram(byref(program))


def _version(nvrtc: ctypes.CDLL) -> bytes:
    major, minor = c_int(), c_int()
    _check(nvrtc.nvrtcVersion(byref(major), byref(minor)), "nvrtcVersion")
    return f"{major.value}.{minor.value}".encode()


def _kept_at(name: str, parts: Seq[bytes]) -> Path:
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()
    return Path(knobs.cache.dir) / f"{name}-{digest}.cubin"


def _keep(path: Path, code: bytes) -> None:
    """Write a file that others may read at the same time; a full or read-only disk is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(code)
        Path(file.name).replace(path)
    except OSError as error:
        logger.warning("the compiled kernel is not kept: %s", error)


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
