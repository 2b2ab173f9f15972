"""Make tests/golden/lfm2.npz: what liquid-audio computes of LFM2-Audio from seeds.

The tests read the file alone; run this only to make it anew, from the root of the repository:

    python tests/golden/make_lfm2.py

It needs liquid-audio 1.3.0 (on Python 3.11 with the four type parameters of model/transformer.py
and utils.py spelled the old way), transformers 4.57.6 and torch 2.13.0 (cpu). Its licence is not
open source, so nothing of it is kept here but the numbers.

lfm2.npz holds (float32 unless said):

    cases          JSON, one object per seed: seed; is_loud; prompt, a list of segments:
                   ["text", ids], ["audio", rows] or ["frames", frames]; runs, {mode: {entries,
                   margin}}
    audio_{n}      (rows, hidden) of case n: the encoded audio of its prompt, drawn at random
    hidden_{n}     (positions / POSITION_STEP, hidden) states of the prompt after the final norm
    logits_{n}     (positions / POSITION_STEP, vocabulary) text logits of the same positions
    frame_{n}      (positions / POSITION_STEP, codebooks) int64: the greedy frame of each state
    prompts        JSON, one object per conversation: turns, [role, parts]; rows, one list per
                   position: [token], frame, or [] for audio
    shapes         JSON, {tensor: shape} of the published size, the encoder's left out
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from tests.models.tiny_lfm2_audio import CALM, LOUD, REAL, SEED, TINY, tiny_weights, write_tokenizer  # noqa: E402

POSITION_STEP = 3
# A part is text, ["sound", samples] at 16 kHz, or ["answer", entries].
Said = ["answer", [[200], [201], [5, 6, 7, 8, 9, 10, 11, 12], [2048] * 8, [202]]]
CONVERSATIONS: tuple[Any, ...] = (
    [["system", ["Perform ASR."]], ["user", [["sound", 16000]]]],
    [["system", ["Perform TTS.\nUse the following voice: A low voice."]], ["user", ["Hi there!"]]],
    [["system", ["Perform TTS. Use the UK male voice."]], ["user", ["  \n\nspaces  the end \n"]]],
    [
        ["system", ["Respond with interleaved text and audio."]],
        ["user", [["sound", 9999]]],
        ["assistant", [Said]],
        ["user", ["and this: ", ["sound", 20480], "?"]],
        ["assistant", ["Ünïcode 你好 🙂"]],
        ["user", [["sound", 1280]]],
    ],
    [["user", [""]]],
)

# Seed, and whether the ids that end text and audio are loud.
SEEDS = ((SEED, True), (SEED + 2, True), (SEED + 3, False))
ENTRIES = 240
ENCODER = ("conformer.", "audio_adapter.")


def main() -> None:
    """Write the file."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    stub_torchaudio()
    cases, made = [], {}
    for n, (seed, is_loud) in enumerate(SEEDS):
        facts, arrays = case(reference(seed, is_loud), seed)
        cases.append(facts | {"is_loud": is_loud})
        made |= {f"{name}_{n}": array for name, array in arrays.items()}
    made["prompts"] = json.dumps(prompts())
    made["shapes"] = json.dumps(real_shapes())
    np.savez_compressed(HERE / "lfm2.npz", cases=json.dumps(cases), **made)
    print("lfm2.npz", (HERE / "lfm2.npz").stat().st_size, "bytes")


def stub_torchaudio() -> None:
    """Stand in for torchaudio, whose wheel needs CUDA: the model itself never calls it."""
    stub = types.ModuleType("torchaudio")
    stub.functional = types.SimpleNamespace(resample=same_rate)  # type: ignore[attr-defined]
    stub.__spec__ = importlib_spec("torchaudio")
    sys.modules.setdefault("torchaudio", stub)


def same_rate(wave: torch.Tensor, rate: int, wanted: int) -> torch.Tensor:
    """Resample where there is nothing to do."""
    assert rate == wanted
    return wave


def importlib_spec(name: str) -> Any:
    """Give a module that is not on disk the specification that importers look at."""
    from importlib.machinery import ModuleSpec

    return ModuleSpec(name, loader=None)


def prompts() -> list[dict[str, Any]]:
    """Conversations as the reference lays them out."""
    from liquid_audio.processor import ChatState, LFM2AudioProcessor, PreprocessorConfig
    from liquid_audio.utils import mel2emb_len

    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        names = {"tokenizer_class": "PreTrainedTokenizerFast"}
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(names))
        (Path(folder) / "config.json").write_text('{"model_type": "lfm2"}')
        settings = PreprocessorConfig(**TINY["preprocessor"])
        processor = LFM2AudioProcessor(folder, settings)
    made = []
    for turns in CONVERSATIONS:
        chat = ChatState(processor, dtype=torch.float32)
        for role, parts in turns:
            chat.new_turn(role)
            for part in parts:
                add(chat, part)
            chat.end_turn()
        chat.new_turn("assistant")
        num_audio = sum(mel2emb_len(int(frames)) for frames in chat.audio_in_lens)
        text, frames = iter(chat.text[0].tolist()), iter(chat.audio_out.T.tolist())
        flags = [int(flag) for flag in chat.modality_flag[0]]
        assert flags.count(2) == num_audio
        rows = [[next(text)] if f == 1 else [] if f == 2 else next(frames) for f in flags]
        made.append({"turns": turns, "rows": rows})
    return made


def add(chat: Any, part: Any) -> None:
    """Add one part of a turn."""
    if isinstance(part, str):
        if part:  # of an empty text the tokenizer makes an array of floats
            chat.add_text(part)
    elif part[0] == "sound":
        chat.add_audio(torch.randn(1, part[1]) * 0.1, 16000)
    else:
        text = torch.tensor([[ids[0] for ids in part[1] if len(ids) == 1]])
        frames = torch.tensor([ids for ids in part[1] if len(ids) == 8]).T
        chat.append(text, frames, torch.tensor([1 if len(ids) == 1 else 3 for ids in part[1]]))


def settings(values: dict[str, Any]) -> Any:
    """The reference's configuration object."""
    from liquid_audio.model.conformer.encoder import ConformerEncoderConfig
    from liquid_audio.model.lfm2_audio import DepthformerConfig, LFM2AudioConfig
    from transformers import Lfm2Config

    own = copy.deepcopy(values)
    return LFM2AudioConfig(
        lfm=Lfm2Config(**own.pop("lfm")),
        encoder=ConformerEncoderConfig(**own.pop("encoder")),
        depthformer=DepthformerConfig(**own.pop("depthformer")),
        **own,
    )


def reference(seed: int, is_loud: bool) -> Any:
    """The reference model with weights from a seed."""
    from liquid_audio.model.lfm2_audio import LFM2AudioModel

    model = LFM2AudioModel(settings(TINY)).eval()
    model.lfm.set_attn_implementation("sdpa")
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    buffers = {name for name, _ in model.named_buffers()}
    tied = {name for name in shapes if name.startswith("depth_") and "to_logits" in name}
    drawn = {name: shape for name, shape in shapes.items() if name not in buffers | tied}
    loudness = LOUD if is_loud else CALM
    drawn_weights = tiny_weights(drawn, seed, loudness)
    weights = {name: torch.from_numpy(weight) for name, weight in drawn_weights.items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= buffers | tied
    head = model.depth_embeddings[0]
    assert head.to_logits.weight.data_ptr() == head.embedding.weight.data_ptr()
    return model


def case(model: Any, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Facts and arrays of one seed."""
    rng = np.random.default_rng(seed)
    hidden = TINY["lfm"]["hidden_size"]
    rows = 9 + 4 * (seed % 3)
    frames = rng.integers(0, 2048, (5, 8))
    frames[-1] = 2048  # an earlier answer ends with its end
    prompt: list[list[Any]] = [
        ["text", [1, *rng.integers(140, 384, 7).tolist()]],
        ["audio", rows],
        ["text", rng.integers(140, 384, 4).tolist()],
        ["frames", frames.tolist()],
        ["text", rng.integers(140, 384, 6).tolist()],
    ]
    audio = torch.from_numpy(rng.standard_normal((rows, hidden), dtype=np.float32) * 0.5)
    x = embedded(model, prompt, audio)
    with torch.no_grad():
        states = model.lfm(inputs_embeds=x, use_cache=False).last_hidden_state[0]
        logits = torch.nn.functional.linear(states, model.lfm.embed_tokens.weight)
        some = states[::POSITION_STEP]
        drawn = torch.stack([model._sample_audio_frame(state) for state in some])
    model._prefill = lambda **_: x
    runs = {
        "interleaved": run(model, model.generate_interleaved),
        "sequential": run(model, model.generate_sequential),
    }
    arrays = {
        "audio": audio.numpy(),
        "hidden": some.numpy(),
        "logits": logits[::POSITION_STEP].numpy(),
        "frame": drawn.numpy(),
    }
    return {"seed": seed, "prompt": prompt, "runs": runs}, arrays


def embedded(model: Any, prompt: list[list[Any]], audio: torch.Tensor) -> torch.Tensor:
    """Inputs of a prompt, (1, positions, hidden)."""
    parts = []
    for kind, what in prompt:
        if kind == "text":
            parts.append(model.lfm.embed_tokens(torch.tensor(what)))
        elif kind == "audio":
            parts.append(audio)
        else:
            codes = torch.tensor(what) + model.codebook_offsets
            parts.append(model.audio_embedding(codes).sum(1))
    return torch.cat(parts).detach()[None]


def run(model: Any, generate: Any) -> dict[str, Any]:
    """The entries of a greedy run, and by how much the best id led at its closest."""
    margins: list[float] = []
    argmax = torch.Tensor.argmax

    def watched(logits: torch.Tensor, *args: Any, **more: Any) -> torch.Tensor:
        best = logits.topk(2).values
        margins.append(float(best[0] - best[1]))
        return argmax(logits, *args, **more)

    torch.Tensor.argmax = watched  # type: ignore[method-assign]
    try:
        nothing = torch.zeros(0)
        entries = [
            entry.tolist()
            for entry in generate(
                text=nothing,
                audio_in=nothing,
                audio_in_lens=nothing,
                audio_out=nothing,
                modality_flag=nothing,
                max_new_tokens=ENTRIES,
            )
        ]
    finally:
        torch.Tensor.argmax = argmax  # type: ignore[method-assign]
    pattern = "".join("T" if len(ids) == 1 else "e" if ids[0] == 2048 else "A" for ids in entries)
    specials = [ids[0] for ids in entries if len(ids) == 1 and ids[0] in (7, 128, 130)]
    print(generate.__name__, len(entries), pattern, specials, "margin", min(margins))
    return {"entries": entries, "margin": min(margins)}


def real_shapes() -> dict[str, list[int]]:
    """Names and shapes of the published size, without the encoder."""
    from liquid_audio.model import lfm2_audio

    class NoEncoder(torch.nn.Module):
        """Stands for the encoder, which computes while it is built, as "meta" cannot."""

        def __init__(self, **values: Any):
            super().__init__()
            self._feat_out = values["d_model"]

    lfm2_audio.ConformerEncoder = NoEncoder
    with torch.device("meta"):
        state = lfm2_audio.LFM2AudioModel(settings(REAL)).state_dict()
    return {
        name: list(tensor.shape) for name, tensor in state.items() if not name.startswith(ENCODER)
    }


if __name__ == "__main__":
    main()
