"""openai-python's own tests, run against a server of ours.

`python -m tests.clients.openai_suite` prints every outcome. Tests and SDK are those of the source
distribution of the version that constraints.txt pins, whatever is installed: the list of what
cannot pass is for this version. The files stay outside the repository.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from izwi.checkpoints.registry import embedded
from tests.api.served import served

PLUGIN = Path(__file__).with_name("plugin")
AUDIO = ("speech", "transcriptions", "translations", "voices", "voice_consents")
# They reach the server; speech does since the plugin lets its requests through.
RESOURCES = (
    *(f"tests/api_resources/audio/test_{name}.py" for name in AUDIO),
    "tests/api_resources/test_models.py",
)
CHAT = "tests/api_resources/chat"
# What the SDK makes of errors. These tests answer themselves and never reach a server.
ERRORS = ("tests/test_client.py", "tests/test_status_error_messages.py")
# Names that their tests ask for, and the embedded checkpoint that answers to them.
MODELS = {
    "tts-1": "izwi-tiny-tts",
    "gpt-4o-transcribe": "izwi-tiny-asr",
    "whisper-1": "izwi-tiny-asr",
    "gpt-6-astra": "izwi-tiny-chat",
}
FETCH_S = 120
_ROOT = Path(__file__).parents[2]
CACHE = _ROOT / "build" / "openai-sdist"
# Of the client's own tests those of errors.
_CHOICE = "(not test_client or error or retr or timeout)"
# Each test of a resource runs once for each kind of client. The strict one also refuses answers
# that its types do not allow; clients of asyncio send the same requests.
STRICT = f"{_CHOICE} and not loose and not async"
EVERY_CLIENT = _CHOICE
# What the environment of this machine must not change: keys and addresses of the SDK, options of
# pytest, and proxies.
_LEFT_OUT = re.compile(r"OPENAI_.*|PYTEST_.*|PYTHON.*|.*_PROXY", re.IGNORECASE)


@dataclass(frozen=True)
class Refused:
    """Tests that cannot pass here: which, how they end (`Outcome.error`), and why that is right."""

    tests: str
    error: str
    reason: str


EXPECTED = (
    Refused(
        r"test_speech\.py::.*::test_method_create",
        r"JSONDecodeError|UnicodeDecodeError",
        "the test reads back as JSON what it had put into a mock; the server sends audio",
    ),
    Refused(
        r"test_transcriptions\.py::.*with_all_params",
        r"400 \w+ timestamp_granularities",
        "asks at once for what OpenAI takes for different models and formats only: log "
        "probabilities, known speakers, word times in json, a language called 'language'",
    ),
    Refused(
        r"test_translations\.py::",
        r"400 translation_unsupported model",
        "no model here translates; the server says so",
    ),
    Refused(
        r"test_voices\.py::.*overload_2",
        r"400 \w+ type",
        "the embedded checkpoints clone, and do not follow descriptions",
    ),
    Refused(
        r"test_voice_consents\.py::.*list_with_all_params",
        r"400 \w+ after",
        "the limit 0 and a cursor that is no id; OpenAI documents 1 to 100",
    ),
    Refused(
        r"test_models\.py::.*(method|raw_response|streaming_response)_delete",
        r"404 model_not_found model",
        "deletes a fine-tuned model that is not served here",
    ),
    Refused(
        r"chat/test_completions\.py::.*with_all_params_overload",
        r"400 \w+ max_completion_tokens",
        "asks at once for no token, tools, audio that is stored, a prediction and a web search",
    ),
)


class Unfetchable(Exception):
    """pip cannot fetch the source distribution."""


@dataclass(frozen=True)
class Outcome:
    """What became of one test.

    Attributes:
        error: How it failed, in terms that no rewording changes: "STATUS CODE PARAM" of the
            server's response, or the name of the exception.
        num_sent: Requests that reached the network.
    """

    test: str
    outcome: str
    error: str
    message: str
    num_sent: int
    seconds: float

    def refusal(self) -> Refused | None:
        """Why it cannot pass here, or None if it should."""
        return next((entry for entry in EXPECTED if re.search(entry.tests, self.test)), None)

    @property
    def is_as_expected(self) -> bool:
        """Whether it passed, or failed as documented."""
        refusal = self.refusal()
        if self.outcome == "skipped":  # mocks and that transport do not know each other
            return "aiohttp client is not compatible" in self.message
        if refusal is None:
            return self.outcome == "passed"
        return self.outcome == "failed" and bool(re.fullmatch(refusal.error, self.error))


def pinned_version(constraints: str) -> str:
    """Return the version of openai-python in the text of a constraints file."""
    (version,) = re.findall(r"^openai==(\S+)$", constraints, re.MULTILINE)
    return str(version)


def fetch(cache: Path = CACHE) -> Path:
    """Return the folder of the unpacked source distribution. Raises Unfetchable."""
    name = f"openai-{pinned_version((_ROOT / 'constraints.txt').read_text())}"
    if not (cache / name).is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            _download(name.replace("-", "=="), Path(temporary))
            with tarfile.open(Path(temporary) / f"{name}.tar.gz") as archive:
                if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
                    archive.extraction_filter = tarfile.data_filter
                archive.extractall(temporary)
            # whole or not at all
            (Path(temporary) / name).rename(cache / name)
    return cache / name


def _download(requirement: str, folder: Path) -> None:
    # pip asks openai's build backend, which is installed here, for the version of what it fetched
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--no-binary", "openai", "--dest", str(folder), requirement]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=FETCH_S)
    except subprocess.CalledProcessError as error:
        raise Unfetchable(f"pip cannot fetch {requirement}: {error.stderr[-300:]}") from error
    except subprocess.TimeoutExpired as error:
        raise Unfetchable(f"pip cannot fetch {requirement} in {FETCH_S} s") from error


def link_models(folder: Path, models: dict[str, str]) -> list[str]:
    """Make the embedded checkpoints folders of other names; return the options that serve them."""
    options = []
    for name, source in models.items():
        try:
            shutil.copytree(embedded()[source], folder / name, copy_function=os.link)
        except shutil.Error:  # another file system
            shutil.copytree(embedded()[source], folder / name, dirs_exist_ok=True)
        options += ["--model", str(folder / name)]
    return options


def speech_clip(url: str) -> bytes:
    """Return a WAV of a sentence."""
    body = {"model": "tts-1", "voice": "alloy", "response_format": "wav"}
    body["input"] = "The house is near the river."
    answer = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=60)
    return answer.raise_for_status().content


def run_suite(
    suite: Path,
    url: str,
    folder: Path,
    tests: Sequence[str],
    spoken: bytes = b"",
    choice: str = EVERY_CLIENT,
) -> list[Outcome]:
    """Run files of their tests against a server; return their outcomes.

    Args:
        suite: Where they are.
        url: Of the server.
        folder: For what is written meanwhile.
        tests: Which files.
        spoken: A WAV with speech, for those that send one.
        choice: Which tests of these files, in terms of pytest's `-k`.
    """
    outcomes, clip = folder / "outcomes.jsonl", folder / "clip.wav"
    clip.write_bytes(spoken)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "izwi_openai_suite",
        "-p",
        "pytest_asyncio.plugin",
    ]
    command += ["-p", "no:cacheprovider", "-o", "addopts=", "-q", "--tb=short", "-k", choice]
    kept = {name: value for name, value in os.environ.items() if not _LEFT_OUT.fullmatch(name)}
    environ = kept | {
        "PYTHONPATH": os.pathsep.join([str(PLUGIN), str(suite / "src")]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "TEST_API_BASE_URL": f"{url}/v1",
        "IZWI_SUITE_CLIP": str(clip),
        "IZWI_SUITE_OUTCOMES": str(outcomes),
    }
    done = subprocess.run(
        [*command, *tests], cwd=suite, env=environ, capture_output=True, text=True
    )
    if done.returncode not in (0, 1):  # 1: some failed, as some must
        raise RuntimeError(done.stdout[-4000:] + done.stderr[-4000:])
    return [Outcome(**json.loads(line)) for line in outcomes.read_text().splitlines()]


def run_all(folder: Path, *others: str, choice: str = EVERY_CLIENT) -> list[Outcome]:
    """Run their tests of audio, models and chat against the embedded checkpoints.

    Args:
        folder: For what is written meanwhile.
        others: More files of their tests, which need no model.
        choice: Which tests of all these files, in terms of pytest's `-k`.

    Raises:
        Unfetchable: pip cannot fetch their tests.
    """
    suite = fetch()
    with served(folder, *link_models(folder, MODELS)) as server:
        clip = speech_clip(server.url)
        return run_suite(suite, server.url, folder, [*RESOURCES, CHAT, *others], clip, choice)


def main() -> None:
    """Run all, and print a line for each test and a table of counts."""
    with tempfile.TemporaryDirectory() as temporary:
        outcomes = run_all(Path(temporary), *ERRORS)
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        kind = outcome.outcome if outcome.is_as_expected else f"{outcome.outcome}, UNEXPECTED"
        count = counts.setdefault(outcome.test.partition("::")[0], Counter())
        count[kind] += 1
        count["reached the server"] += outcome.num_sent > 0
        said = f"{outcome.error} {outcome.message[:160]!r}"
        print(f"{kind:10} {outcome.seconds:6.2f} s {outcome.test} {said}")
    for file, count in counts.items():
        print(file, dict(count))
    if not all(outcome.is_as_expected for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
