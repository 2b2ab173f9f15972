"""Make an environment that holds a wheel and what it requires, and nothing else.

`python -m tests.contract.wheel_environment WHEEL FOLDER`. The packages that the wheel requires are
links to those of the environment that runs this, so that torch is not unpacked a second time. What
the wheel does not declare cannot be imported there.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def required(dist: Distribution, extras: set[str]) -> Iterator[Requirement]:
    """What a distribution requires on this machine, with some of its extras."""
    for line in dist.requires or ():
        requirement = Requirement(line)
        choices = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(map(requirement.marker.evaluate, choices)):
            yield requirement


def all_required(wheel: Distribution) -> list[Distribution]:
    """What a wheel requires, and what that requires in turn, as it is installed here."""
    seen: set[tuple[str, frozenset[str]]] = set()
    found: dict[str, Distribution] = {}
    pending = list(required(wheel, set()))
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        if (key := (name, frozenset(requirement.extras))) in seen:
            continue
        seen.add(key)
        found[name] = distribution(name)
        pending += required(found[name], requirement.extras)
    return list(found.values())


def link_packages(dists: list[Distribution], site: Path) -> None:
    """Link the packages of distributions into another environment's site-packages."""
    for dist in dists:
        tops = {file.parts[0] for file in dist.files or ()} - {"..", "__pycache__"}
        assert tops, dist.name
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(dist.locate_file(top))).resolve())


def main() -> None:
    wheel, folder = map(Path, sys.argv[1:])
    venv.create(folder, symlinks=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", paths)).resolve()
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    (installed,) = distributions(path=[str(site)])
    link_packages(all_required(installed), site)
    subprocess.run([*pip, "check"], check=True)


if __name__ == "__main__":
    main()
