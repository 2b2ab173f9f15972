"""The kernels compile for a GPU, also where only the interpreter runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops.devices import GPU

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(GPU, reason="the other tests compile what they launch")
@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--every",),
        *(("--every", "--capability", each) for each in ("80", "86", "89", "120")),
    ],
)
def test_every_kernel_compiles_for_a_gpu(tmp_path: Path, more: tuple[str, ...]) -> None:
    # read when triton is imported, so it takes a process of its own
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.torch.compile_kernels", *more],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    compiled = {line.partition(":")[0] for line in done.stdout.splitlines()}
    assert compiled >= {
        *("few_rows", "many_rows", "all_rows", "few_rows_packed", "many_rows_packed"),
        "sliced_rows_packed",
        *("_widen", "_widen_packed", "paged", "join_parts", "scratch", "keep_prompt"),
        *("attend_tile", "_rms_norm", "_swiglu", "_snake", "_convolve", "_store_inputs"),
        *("find_candidates", "merge_candidates", "choose", "_down", "_up"),
    }
