"""Run the body of a Metal kernel on a CPU: compiled as C++, with a fiber for each GPU thread.

Only what `izwi.backends.mlx.paged_decode` uses of Metal is defined. The lanes of a simdgroup run
in lockstep; simdgroups run at different paces, and only a barrier joins them. A `simd_sum` that
not every lane reaches is an error.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

HAS_COMPILER = shutil.which("g++") is not None

_METAL = r"""
#include <ucontext.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

typedef unsigned int uint;
struct uint3 { uint x, y, z; };
typedef _Float16 float16_t;
struct bfloat16_t {
    uint16_t bits;
    bfloat16_t() = default;
    explicit bfloat16_t(float x) {
        uint32_t wide;
        std::memcpy(&wide, &x, 4);
        bits = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
    }
    explicit operator float() const {
        uint32_t wide = uint32_t(bits) << 16;
        float x;
        std::memcpy(&x, &wide, 4);
        return x;
    }
};
namespace metal {
inline float sqrt(float x) { return std::sqrt(x); }
inline float exp(float x) { return std::exp(x); }
inline float max(float x, float y) { return std::fmax(x, y); }
}
enum class mem_flags { mem_threadgroup };

const uint LANES_OF_A_SIMDGROUP = 32;
struct Fiber { ucontext_t context; std::vector<char> stack; uint3 thread; bool done; long sums; };
static std::vector<Fiber> fibers;
static std::vector<float> summed[2];
static ucontext_t scheduler;
static uint running, at_barrier, barriers;
static uint3 position;
static int failures;

static void yield() { swapcontext(&fibers[running].context, &scheduler); }

static float simd_sum(float x) {
    const uint own = running, first = own - own % LANES_OF_A_SIMDGROUP;
    const long count = ++fibers[own].sums;
    summed[count % 2][own] = x;
    yield();
    float sum = 0.0f;
    for (uint lane = first; lane < first + LANES_OF_A_SIMDGROUP; lane++) {
        failures += fibers[lane].sums < count;
        sum += summed[count % 2][lane];
    }
    return sum;
}

static void threadgroup_barrier(mem_flags) {
    const uint target = fibers.size() * (at_barrier++ / fibers.size() + 1);
    while (at_barrier < target) yield();
}

#define device
#define constant
#define threadgroup static
"""

_LAUNCH = r"""
static void (*body)();

extern "C" int launch(const uint* grid, const uint* group) {
    const uint size = group[0] * group[1] * group[2];
    fibers.resize(size);
    summed[0].resize(size);
    summed[1].resize(size);
    failures = 0;
    for (uint axis = 0; axis < 3; axis++) failures += grid[axis] % group[axis] != 0;
    for (position.z = 0; position.z < grid[2] / group[2]; position.z++)
    for (position.y = 0; position.y < grid[1] / group[1]; position.y++)
    for (position.x = 0; position.x < grid[0] / group[0]; position.x++) {
        at_barrier = 0;
        for (uint n = 0; n < size; n++) {
            Fiber& fiber = fibers[n];
            fiber.stack.resize(1 << 16);
            fiber.done = false;
            fiber.sums = 0;
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.data();
            fiber.context.uc_stack.ss_size = fiber.stack.size();
            fiber.context.uc_link = &scheduler;
            makecontext(&fiber.context, [] { body(); fibers[running].done = true; }, 0);
        }
        for (uint left = size; left > 0;) {
            left = 0;
            for (running = 0; running < size; running++) {
                if (fibers[running].done) continue;
                swapcontext(&scheduler, &fibers[running].context);
                left += !fibers[running].done;
            }
        }
    }
    return failures;
}
"""

_ATTRIBUTES = {
    "threadgroup_position_in_grid": ("uint3", "position"),
    "thread_index_in_simdgroup": ("uint", "running % LANES_OF_A_SIMDGROUP"),
    "simdgroup_index_in_threadgroup": ("uint", "running / LANES_OF_A_SIMDGROUP"),
}
_TYPES = {
    mx.float32: "float",
    mx.float16: "float16_t",
    mx.bfloat16: "bfloat16_t",
    mx.int32: "int32_t",
}


class EmulatedKernel:
    """Called as an object of `mx.fast.metal_kernel`, but computes at once."""

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str], source: str):
        self._inputs, self._outputs, self._source = inputs, outputs, source
        self.num_calls = 0

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        template: Sequence[tuple[str, Any]],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        """Launch all threads.

        Raises:
            RuntimeError: The lanes of a simdgroup diverged, or a threadgroup is incomplete.
        """
        self.num_calls += 1
        values = [f"{_TYPES[v]}" if isinstance(v, mx.Dtype) else str(v) for _, v in template]
        names = [(f"{'typename' if v in _TYPES else 'int'} {name}") for name, v in template]
        parameters, arguments, given = [], [], []
        for name, array in zip(self._inputs, inputs, strict=True):
            kind = _TYPES[array.dtype]
            host = np.array(mx.view(array, mx.uint8))
            shape = np.array(array.shape, np.int32)
            given += [host, shape]
            parameters += [f"const {kind}* {name}", f"const int* {name}_shape"]
            arguments += [f"(const {kind}*)", "(const int*)"]
        results = []
        for name, dtype, shape in zip(self._outputs, output_dtypes, output_shapes, strict=True):
            results.append(np.full(int(np.prod(shape)) * dtype.size, 0xFF, np.uint8))
            parameters.append(f"{_TYPES[dtype]}* {name}")
            arguments.append(f"({_TYPES[dtype]}*)")
        given += results
        for name, (kind, expression) in _ATTRIBUTES.items():
            parameters.append(f"{kind} {name}")
            arguments.append(expression)
        call = [one if n >= len(given) else f"{one}given[{n}]" for n, one in enumerate(arguments)]
        program = (
            f"{_METAL}\ntemplate <{', '.join(names)}>\n"
            f"void kernel({', '.join(parameters)}) {{\n{self._source}\n}}\n{_LAUNCH}\n"
            "static void** given;\n"
            f"static void run() {{ kernel<{', '.join(values)}>({', '.join(call)}); }}\n"
            'extern "C" void bind(void** arrays) { given = arrays; body = run; }\n'
        )
        library = _compiled(program)
        pointers = (ctypes.c_void_p * len(given))(*(array.ctypes.data for array in given))
        library.bind(pointers)
        if library.launch((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*threadgroup)):
            raise RuntimeError("lanes of a simdgroup diverged, or a threadgroup is incomplete")
        return [
            mx.view(mx.array(result), dtype).reshape(shape)
            for result, dtype, shape in zip(results, output_dtypes, output_shapes, strict=True)
        ]


@cache
def _compiled(program: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
        source.write_text(program)
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-unused"]
        subprocess.run([*command, str(source), "-o", str(library)], check=True)
        return ctypes.CDLL(str(library))
