"""Where the sessions of mutated modules are, and what they were made of."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutants"
TREE = BUILD / "tree"


@dataclass(frozen=True, slots=True)
class Digest:
    """What a session holds for: the text of a module, and of its tests."""

    source: str
    tests: str

    @classmethod
    def of(cls, module: Path, tests: list[Path]) -> Self:
        """Hash a module and its tests."""
        together = b"".join(test.read_bytes() for test in tests)
        return cls(*(sha256(text).hexdigest()[:16] for text in (module.read_bytes(), together)))


def session_path(module: str) -> Path:
    """Return the session file of a module."""
    return BUILD / f"{module.removesuffix('.py').replace('/', '.')}.sqlite"


def read_digest(module: str) -> Digest | None:
    """Return what the session of a module was made of, None if there is none."""
    try:
        return Digest(**json.loads(session_path(module).with_suffix(".json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_digest(module: str, digest: Digest) -> None:
    """Write down what the session of a module was made of."""
    session_path(module).with_suffix(".json").write_text(json.dumps(asdict(digest)) + "\n")
