"""Compare speech on MLX with mlx-audio: one run, the same weights, alternating rounds.

Random weights in float32 at the embedded voice's shape and at a published one. Both generate the
same number of frames and decode them; mlx-audio without streaming. mlx-audio needs its own
environment:
    python -m venv PEER && PEER/bin/pip install mlx-audio 'mlx[cpu]'
    python -m benchmarks.tts.on_mlx --peer PEER/bin/python --sizes tiny tts-0.6b
On a shared machine, "frames_per_cpu_s" (per second of processor time) says more than the clock.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.fixed_length import fix_lengths
from benchmarks.measure import TEXTS, arguments, write_result
from benchmarks.random_checkpoint import EMBEDDED, RandomBackend, write_folder
from izwi.backends.choice import open_backend
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry, embedded
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.speech import SpeechInput
from izwi.ops.ranks import Part

_PEER = Path(__file__).with_name("mlx_audio_peer.py")
_RATE = 24_000


class WritingBackend(RandomBackend):
    """A backend that writes the weights it draws beside their configuration."""

    def load_weights(
        self,
        folder: Path,
        shapes: Mapping[str, tuple[int, ...]],
        packable: Container[str] = (),
        parts: Mapping[str, Part] | None = None,
    ) -> dict[str, Tensor]:
        """As `RandomBackend`, and write model.safetensors."""
        weights = super().load_weights(folder, shapes, packable, parts)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return weights


def written(size: str, folder: Path) -> Path:
    """Make a checkpoint that both can read: with named voices, without a speaker encoder."""
    if size == "tiny":
        folder.mkdir()
        for file in embedded()[EMBEDDED].rglob("*.json"):
            place = folder / file.relative_to(embedded()[EMBEDDED])
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(file.read_bytes())
        (folder / "merges.txt").write_bytes((embedded()[EMBEDDED] / "merges.txt").read_bytes())
        config = json.loads((folder / "config.json").read_text())
        config |= {"tts_model_type": "custom_voice"}
        del config["speaker_encoder_config"]
        (folder / "config.json").write_text(json.dumps(config))
    else:
        write_folder(size, folder)
    Registry(WritingBackend(torch_backend("cpu").ops)).load(str(folder), size)
    return folder


class Ours:
    """The engine on MLX, stepped as in a server: audio is delivered in chunks."""

    def __init__(self, folder: Path, size: str, frames: int):
        backend = open_backend("mlx", "float32")
        self._registry, self._size, self._made = Registry(backend), size, 0
        self._registry.load(str(folder), size)
        fix_lengths(self._registry, frames)
        config = EngineConfig(kv_bytes=1 << 28)
        self._engine = Engine(self._registry.models, backend, config)
        self.versions = backend.library

    def speak(self, texts: Sequence[str]) -> dict[str, float]:
        """Return seconds until the end and until the last stream's first audio, and samples.

        "cpu_s" is the processor time of all threads, which other load disturbs less.
        """
        model, first_s, samples = self._registry.speech(self._size), dict[str, float](), 0
        began, cpu_began_s = time.perf_counter(), time.process_time()
        for text in texts:
            self._made += 1
            ask = SpeechInput(text, voice=model.speakers[0], seed=self._made, temperature=0.9)
            request = model.prepare_speech(str(self._made), self._size, ask)
            self._engine.submit(replace(request, cacheable=False))
        while self._engine.has_work:
            for chunk in self._engine.step():
                assert chunk.error is None, chunk.error
                if chunk.pcm is not None:
                    samples += len(chunk.pcm)
                    first_s.setdefault(chunk.request_id, time.perf_counter() - began)
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began_s
        first = max(first_s.values())
        return {"seconds": seconds, "cpu_s": cpu_s, "samples": samples, "first_s": first}


class Theirs:
    """mlx-audio in its own process, which returns a batch's audio at its end."""

    def __init__(self, process: subprocess.Popen[str], frames: int):
        self._process, self._frames = process, frames
        self.versions = self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def speak(self, texts: Sequence[str]) -> dict[str, float]:
        """Return seconds until the end (also the time of the first audio), and samples."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"texts": texts, "frames": self._frames}) + "\n")
        self._process.stdin.flush()
        took: dict[str, float] = self._answer()
        return {**took, "first_s": took["seconds"]}


@contextmanager
def peer_of(python: str, folder: Path, frames: int) -> Iterator[Theirs]:
    """Start the peer; it ends with its input."""
    command = [
        python,
        "-I",  # isolated: it is another environment
        str(_PEER),
        str(folder),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Theirs(process, frames)


def rows_of(size: str, options: Any, folder: Path) -> list[dict[str, Any]]:
    """Measure one size, after one stream of each that does not count."""
    rows = []
    with peer_of(options.peer, folder, options.frames) as theirs:
        ours = Ours(folder, size, options.frames)
        engines: dict[str, Ours | Theirs] = {"izwi": ours, "mlx-audio": theirs}
        for engine in engines.values():
            engine.speak(TEXTS[:1])
        for streams in options.streams:
            runs: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
            texts = [TEXTS[n % len(TEXTS)] for n in range(streams)]
            for _ in range(options.rounds):
                for name, engine in engines.items():
                    runs[name].append(engine.speak(texts))
                made = {found[-1]["samples"] for found in runs.values()}
                assert len(made) == 1, f"they did not make as much audio: {made}"
            for name, found in runs.items():
                seconds, cpu_s, first_s = (
                    statistics.median(run[key] for run in found)
                    for key in ("seconds", "cpu_s", "first_s")
                )
                rows.append(
                    {
                        "size": size,
                        "streams": streams,
                        "engine": name,
                        "audio_s_per_s": round(found[-1]["samples"] / _RATE / seconds, 4),
                        "frames_per_s": round(streams * options.frames / seconds, 2),
                        "frames_per_cpu_s": round(streams * options.frames / cpu_s, 2),
                        "first_audio_s": round(first_s, 3),
                        "versions": engines[name].versions,
                    }
                )
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = arguments(__doc__)
    parser.add_argument("--peer", required=True, help="python of an environment with mlx-audio")
    parser.add_argument("--sizes", nargs="+", default=["tiny"], choices=["tiny", "tts-0.6b"])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as parent:
            rows = rows_of(size, options, written(size, Path(parent) / size))
        load_average = round(os.getloadavg()[1], 1)  # of five minutes
        write_result(f"mlx-{size}", rows, load_average=load_average)


if __name__ == "__main__":
    main()
