"""The Dockerfile agrees with the package and with how the server stops; no image is built."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from typer.testing import CliRunner

from izwi_api.cli.main import app

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
STAGES = RECIPE.split("\nFROM ")
STOP_GRACE_S, CUT_OFF_S = 10.0, 5.0  # of `docker stop`; what leaving takes beside the drain


def command() -> list[str]:
    (found,) = re.findall(r"^ENTRYPOINT (.*)$", RECIPE, flags=re.MULTILINE)
    words: list[str] = json.loads(found)
    return words


def test_the_build_context_holds_what_the_wheel_is_made_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert "*" in lines
    assert {package.partition("/")[0] for package in packages} <= allowed
    assert {"pyproject.toml", project["project"]["readme"], "LICENSE"} <= allowed
    assert all((ROOT / name).exists() for name in allowed)
    assert not {".git", "tests", "benchmarks"} & allowed


def test_versions_are_those_of_the_constraints() -> None:
    """PyTorch's index has other versions of other packages, so torch alone is taken from it."""
    assert RECIPE.index("COPY constraints.txt .") < RECIPE.index("grep '^torch==' constraints.txt")
    assert "pip install --no-cache-dir --constraint constraints.txt ." in RECIPE


def test_options_after_the_images_name_keep_the_address() -> None:
    program, verb, *options = command()
    assert (program, verb) == ("izwi", "serve")
    assert options[options.index("--host") + 1] == "0.0.0.0"
    # parsed as `docker run izwi --drain-s 30 --port none` is: only the port is wrong
    refused = CliRunner().invoke(app, [verb, *options, "--drain-s", "30", "--port", "none"])
    assert refused.exit_code == 2
    assert "--port" in refused.stderr


def test_it_stops_within_the_grace_period() -> None:
    options = command()
    assert float(options[options.index("--drain-s") + 1]) + CUT_OFF_S <= STOP_GRACE_S
    assert re.search(r"^STOPSIGNAL SIGTERM$", RECIPE, flags=re.MULTILINE)


def test_image_runs_as_izwi_without_sources() -> None:
    last = STAGES[-1]
    users = re.findall(r"^USER (\w+)$", last, flags=re.MULTILINE)
    assert users == ["izwi"]
    assert re.search(r"^VOLUME /data$", last, flags=re.MULTILINE)
    assert re.findall(r"^COPY (.*)$", last, flags=re.MULTILINE) == [
        "--from=build /opt/izwi /opt/izwi"
    ]
