"""The peer of `benchmarks.tts.on_mlx`: mlx-audio in its own process and environment.

Imports nothing of izwi. Reads one JSON object per line, {"texts": [...], "frames": n}, and answers
{"seconds": ..., "cpu_s": ..., "samples": ...}; its first output line is its description.
    PEER/bin/python -I benchmarks/tts/mlx_audio_peer.py FOLDER
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from importlib import import_module
from importlib.metadata import version
from typing import Any


def never_guessing() -> None:
    """Load all weights as published; it guesses layouts from sizes, which fails for small ones."""
    module = import_module("mlx_audio.tts.models.qwen3_tts.qwen3_tts")
    module.check_array_shape_qwen3 = lambda _: False  # type: ignore[attr-defined]


def never_ending(model: Any) -> None:
    """Prevent the model from drawing an end, so that every run has the requested frames."""
    end = model.config.talker_config.codec_eos_token_id
    of_batch, sample = model._suppress_codec_tokens, model._sample_token

    def sampled(logits: Any, *given: Any, suppress_tokens: Any = None, **named: Any) -> Any:
        banned = suppress_tokens and [*suppress_tokens, end]
        return sample(logits, *given, suppress_tokens=banned, **named)

    model._suppress_codec_tokens = lambda eos: [*of_batch(eos), end]
    model._sample_token = sampled


def speak(model: Any, texts: list[str], frames: int) -> int:
    """Return the samples generated: one text by its single path, several by its batched one."""
    voice = model.supported_speakers[0]
    asked = {"max_tokens": frames, "temperature": 0.9}
    if len(texts) == 1:
        made = model.generate_custom_voice(texts[0], voice, language="english", **asked)
    else:
        made = model.batch_generate(texts, [voice] * len(texts), lang_code="english", **asked)
    return sum(result.samples for result in made)


def main() -> None:
    """Load the folder and answer until the input ends."""
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # the package prints what it loads
        from mlx_audio.tts.utils import load

        never_guessing()
        model = load(sys.argv[1])
        never_ending(model)
        versions = {name: version(name) for name in ("mlx-audio", "mlx")}
        print(json.dumps(versions), file=answers, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            began, cpu_began_s = time.perf_counter(), time.process_time()
            samples = speak(model, asked["texts"], asked["frames"])
            took = {"seconds": time.perf_counter() - began, "samples": samples}
            took["cpu_s"] = time.process_time() - cpu_began_s
            print(json.dumps(took), file=answers, flush=True)


if __name__ == "__main__":
    main()
