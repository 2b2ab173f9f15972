"""Write what pip resolved as constraints: `make constraints` runs it.

Not a pytest module. pip's report comes from `pip install --dry-run --report`; constraints are
lines of a name and a version, without addresses, hashes or builds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEAD = """\
# Versions that go together: Linux, CPU, Python 3.11. Written by `make constraints`.
"""
# with CUDA they come with a build of torch that asks for certain versions
LEFT_OUT = ("izwi", "nvidia-", "cuda-", "triton")


def constraints(report: dict[str, Any]) -> str:
    """Return the text of constraints.txt for pip's report."""
    lines = []
    for entry in report["install"]:
        name = entry["metadata"]["name"].lower().replace("_", "-").replace(".", "-")
        version = entry["metadata"]["version"].partition("+")[0]
        if not name.startswith(LEFT_OUT):
            lines.append(f"{name}=={version}\n")
    return HEAD + "".join(sorted(lines))


if __name__ == "__main__":
    print(constraints(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), end="")
