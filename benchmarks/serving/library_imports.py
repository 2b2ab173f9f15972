"""Measure what importing a library costs a process, beside the code of ours that it would replace.

    python -m benchmarks.serving.library_imports

Each import runs in a fresh process, in turns: processor time beyond that of an empty
process, medians. Libraries that are not installed are left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.util import find_spec
from statistics import median

from benchmarks.measure import write_result

IMPORTS = {
    "nothing": "pass",
    "izwi_api.environment": "import izwi_api.environment",
    "pydantic_settings": "import izwi_api.settings, pydantic_settings",
    "websockets": "import anyio, httpx, websockets.asyncio.client",
    "httpx_ws": "import anyio, httpx, httpx_ws, httpx_ws.transport",
    "our chat template and tokenizer": (
        "import izwi_models.qwen3.tokenizer, izwi_models.qwen3_chat.template"
    ),
    "transformers": "from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast",
    "soundfile": "import numpy, soundfile",
    "av": "import numpy, av",
}


def cost_ms(source: str) -> float:
    """Return the processor time of a process that runs the source."""
    process = subprocess.Popen([sys.executable, "-c", source])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{source!r} ended with {status}")
    return (usage.ru_utime + usage.ru_stime) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    here = {name: source for name, source in IMPORTS.items() if is_installed(name)}
    costs: dict[str, list[float]] = {name: [] for name in here}
    for _ in range(rounds):
        for name, source in here.items():
            costs[name].append(cost_ms(source))
    empty_ms = median(costs["nothing"])
    rows = [
        {"import": name, "processor_ms": round(median(found) - empty_ms, 1)}
        for name, found in costs.items()
        if name != "nothing"
    ]
    write_result("library_imports", rows)


def is_installed(name: str) -> bool:
    """Return whether the library of a row can be imported; our own code always can."""
    return not name.isidentifier() or name == "nothing" or find_spec(name) is not None


if __name__ == "__main__":
    main()
