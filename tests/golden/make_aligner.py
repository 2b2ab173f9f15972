"""Make tests/golden/aligner.npz: what the reference aligner computes from a seed.

The tests read the file alone; run this only to make it anew, from the root of the repository:

    python tests/golden/make_aligner.py

It needs what make_asr.py needs, with nagisa and soynlp at work. As there, the encoder is handed the
windows that the eager path of qwen-asr forgets.

aligner.npz holds (float32 unless said):

    cases         JSON, one object per case: seconds, language, text, prompt (ids), classes (ids),
                  margin (smallest distance of the best two logits), answer [[word, start, end]]
    logits_{n}    (marks, 780 / LOGIT_STEP) of case n
    words         JSON, [[language, text, [words]], ...]
    tagged        JSON, {Japanese text: what nagisa cuts it into}
    stems         JSON, the Korean stems that the words of WORDS begin with
    fixed         JSON, [[times in ms], [the same, put in order]], ...
    real          JSON, {config, digest, names, parameters} of the published size
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from tests.golden.make_asr import hide_torchaudio, reference_processor, with_windows  # noqa: E402
from tests.models.tiny_aligner import TINY, seeded_weights  # noqa: E402
from tests.models.tiny_asr import waveform  # noqa: E402

LOGIT_STEP = 13
LONG = (
    "It isn't the fall that hurts, said the 2nd man; it's the sudden stop at the end. "
    "Nobody laughed, and the system went on -- the land, the theme, the anthem, all of it."
)
CASES: tuple[tuple[float, str, str], ...] = (
    (3.2, "English", "The system, the land."),
    (19.5, "English", LONG),
    (8.01, "Chinese", "我们在 Lanthe 等了3天，他没来。"),
    (0.35, "German", "Nun"),
    (5.4, "Japanese", "今日はとても良い天気です、ＡＢＣ。"),
    (4.4, "Korean", "오늘은 날씨가 정말 좋습니다."),
    (61.0, "English", LONG),
)
WORDS: tuple[tuple[str, str], ...] = (
    *((language, text) for _, language, text in CASES),
    ("English", "  --  "),
    ("English", "don't 'tis rock'n'roll e.g. 3.14 naïve café\u0301 x\u200by"),
    ("English", "A\u3000B\tC\nD\x1cE 《书》-a中b--国c"),
    ("Russian", "Съешь же ещё этих мягких французских булок, да выпей чаю."),
    ("Chinese", "㐀𠀀𪜀豈〇々ー"),
    ("French", "L\u2019été, c'est l'été \u2014 n'est-ce pas\u00a0?"),
    ("Japanese", "東京 タワー、に 行った。"),
    ("Japanese", "ﾊﾝｶｸ と 全角１２３ を 混ぜる"),
    ("Korean", "나는 학교에 갔다가 집으로 돌아왔습니다!"),
    ("Korean", '"안녕하세요," 그가 말했다.'),
)
NUM_FIXED = 80


def main() -> None:
    """Write the file."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    made = computed()
    np.savez_compressed(HERE / "aligner.npz", **made)
    print("aligner.npz", (HERE / "aligner.npz").stat().st_size, "bytes")


def computed() -> dict[str, Any]:
    """Everything of aligner.npz."""
    hide_torchaudio()
    import nagisa
    from qwen_asr.inference.qwen3_forced_aligner import (
        Qwen3ForceAlignProcessor,
        Qwen3ForcedAligner,
    )

    model = reference(TINY)
    shapes = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    weights = seeded_weights(shapes)
    model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()}, strict=True)
    with_windows(model.thinker.audio_tower)
    words = Qwen3ForceAlignProcessor()
    aligner = Qwen3ForcedAligner(model, reference_processor(), words)
    made: dict[str, Any] = {}
    cases = []
    for n, case in enumerate(CASES):
        facts, logits = aligned(aligner, *case)
        made[f"logits_{n}"] = logits[:, ::LOGIT_STEP].numpy()
        cases.append(facts)
    korean = [word for language, text in WORDS if language == "Korean" for word in text.split()]
    stems = sorted(stem for stem in words.ko_score if any(w.startswith(stem) for w in korean))
    japanese = [text for language, text in WORDS if language == "Japanese"]
    return made | {
        "cases": json.dumps(cases),
        "words": json.dumps([[a, b, words.encode_timestamp(b, a)[0]] for a, b in WORDS]),
        "tagged": json.dumps({text: list(nagisa.tagging(text).words) for text in japanese}),
        "stems": json.dumps(stems),
        "fixed": json.dumps([[t, words.fix_timestamp(np.asarray(t))] for t in unordered()]),
        "real": json.dumps(real()),
    }


def reference(values: dict[str, Any]) -> Any:
    """The reference model with its own initial weights."""
    from qwen_asr.core.transformers_backend import (
        Qwen3ASRConfig,
        Qwen3ASRForConditionalGeneration,
    )

    config = Qwen3ASRConfig(**{k: copy.deepcopy(v) for k, v in values.items() if k != "model_type"})
    thinker = config.thinker_config
    for part in (config, thinker, thinker.audio_config, thinker.text_config):
        part._attn_implementation = "sdpa"
    return Qwen3ASRForConditionalGeneration(config).eval()


def aligned(
    aligner: Any, seconds: float, language: str, text: str
) -> tuple[dict[str, Any], torch.Tensor]:
    """Facts of one case and its logits at the marks (marks, classes)."""
    heard = waveform(seconds)
    _, asked = aligner.aligner_processor.encode_timestamp(text, language)
    inputs = aligner.processor(text=[asked], audio=[heard], return_tensors="pt", padding=True)
    ids = inputs["input_ids"][0]
    with torch.no_grad():
        aligner.model.thinker.rope_deltas = None
        logits = aligner.model.thinker(**inputs).logits[0]
    logits = logits[ids == aligner.timestamp_token_id]
    best = logits.topk(2).values
    margin = float((best[:, 0] - best[:, 1]).min())
    classes = logits.argmax(-1).tolist()
    answer = aligner.align((heard, 16000), text, language)[0]
    print(seconds, language, classes, "margin", margin)
    assert margin > 2e-4  # ten times what float32 differs by
    return {
        "seconds": seconds,
        "language": language,
        "text": text,
        "prompt": ids.tolist(),
        "classes": classes,
        "margin": margin,
        "answer": [[item.text, item.start_time, item.end_time] for item in answer],
    }, logits


def unordered() -> list[list[float]]:
    """Times that fall now and then: rising ones with noise, runs, and plain noise."""
    rng = np.random.Generator(np.random.PCG64(5))
    made: list[list[float]] = []
    for n in range(NUM_FIXED):
        length = int(rng.integers(1, 40))
        times = np.sort(rng.integers(0, 5000, length))
        wrong = rng.random(length) < (0.0, 0.1, 0.4, 1.0)[n % 4]
        times[wrong] = rng.integers(0, 5000 if n % 8 < 4 else 20, int(wrong.sum()))
        made.append([float(time) * 80.0 for time in times])
    return made


def real() -> dict[str, Any]:
    """Digest of the names and shapes of the published size."""
    values = copy.deepcopy(TINY)
    values["timestamp_token_id"] = 151705
    thinker = values["thinker_config"]
    thinker["audio_token_id"], thinker["classify_num"] = 151676, 5000
    thinker["audio_config"].update(
        d_model=1024,
        encoder_layers=24,
        encoder_attention_heads=16,
        encoder_ffn_dim=4096,
        output_dim=1024,
        downsample_hidden_size=480,
    )
    thinker["text_config"].update(
        vocab_size=152064,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
    )
    with torch.device("meta"):
        state = reference(values).state_dict()
    shapes = {k: list(v.shape) for k, v in state.items()}
    return {
        "config": values,
        "digest": hashlib.sha256(json.dumps(sorted(shapes.items())).encode()).hexdigest(),
        "names": len(shapes),
        "parameters": sum(tensor.numel() for tensor in state.values()),
    }


if __name__ == "__main__":
    main()
