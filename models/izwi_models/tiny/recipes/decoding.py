"""Run the embedded checkpoints on many requests at once for evaluation: speak and transcribe.

This is a plain loop over the model functions that the engine also calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from safetensors.torch import load_file
from torch import Tensor

from izwi.backends.torch.attention.dense import RopeTable, attend, rope_table
from izwi.backends.torch.ops import TorchOps
from izwi.inputs.speech import TextMode, VoicePrompt
from izwi.ops.protocol import AttentionSpec
from izwi_models.qwen3.config import DecoderConfig
from izwi_models.qwen3.decoder import decode
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_asr import config as asr_config
from izwi_models.qwen3_asr.encoder import Windows, encode_windows
from izwi_models.qwen3_codec.decoder import decode as decode_audio
from izwi_models.qwen3_codec.decoder import zero_state
from izwi_models.qwen3_codec.quantizer import prepare
from izwi_models.qwen3_tts import config as tts_config
from izwi_models.qwen3_tts import talker
from izwi_models.qwen3_tts.prompt import SPEAKER, Conditioning, SpeechText, assemble
from izwi_models.qwen3_tts.speaker import speaker_embedding
from izwi_models.tiny.recipes.asr_text import Template
from izwi_models.tiny.recipes.codec_folder import load_codec
from izwi_models.tiny.recipes.data import text_table
from izwi_models.tiny.recipes.features import token_counts
from izwi_models.tiny.recipes.spectral import speaker_mel, to_16k, whisper_mel

_FRAME = 1920
_MEL_STEP = 160


class RowCache:
    """Keys and values of rows at different positions; an attention context."""

    def __init__(self, rows: int, capacity: int, config: DecoderConfig, ops: TorchOps):
        spec = config.attention
        shape = (config.num_hidden_layers, rows, capacity, spec.num_kv_heads, spec.head_dim)
        self._keys = torch.zeros(shape, device=ops.device, dtype=ops.dtype)
        self._values = torch.zeros_like(self._keys)
        self._slots = torch.arange(capacity, device=ops.device)
        self._rows = torch.arange(rows, device=ops.device)[:, None]
        self.at = torch.zeros(rows, dtype=torch.long, device=ops.device)

    def _positions(self, tokens: int) -> Tensor:
        return self.at[:, None] + self._slots[:tokens]

    def rope(self, num_tokens: int, spec: AttentionSpec, dtype: torch.dtype) -> RopeTable:
        """Return the rotary embedding for the positions of this call."""
        assert spec.rope_theta is not None
        return rope_table(self._positions(num_tokens), spec.head_dim, spec.rope_theta, dtype)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the keys and values of this call, then attend to all up to each query."""
        positions = self._positions(q.shape[1])
        self._keys[layer][self._rows, positions] = k
        self._values[layer][self._rows, positions] = v
        seen = self._slots[None, None] <= positions[..., None]
        return attend(q, self._keys[layer], self._values[layer], seen)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of codes."""

    temperature: float = 0.6
    top_k: int = 20


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Draw an id from each row of (rows, vocabulary) logits: (rows,) int64."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    logits = logits.float() / sampling.temperature
    least = logits.topk(min(sampling.top_k, logits.shape[-1]), -1).values[:, -1:]
    weights = logits.masked_fill(logits < least, -torch.inf).softmax(-1)
    return torch.multinomial(weights, 1, generator=generator)[:, 0]


class Speaker:
    """izwi-tiny-tts."""

    def __init__(self, folder: Path, device: torch.device):
        self.device, self.ops = device, TorchOps(device)
        self.config = tts_config.read_config(folder)
        self._weights = {
            name: tensor.float().to(device)
            for name, tensor in load_file(folder / "model.safetensors").items()
        }
        self._text = SpeechText(QwenTokenizer(folder))
        self.codec, weights = load_codec(folder / "speech_tokenizer", device)
        self.codec_weights = prepare(self.ops, weights, self.codec)
        talker_config = self.config.talker_config
        self._suppressed = torch.zeros(talker_config.vocab_size, dtype=torch.bool, device=device)
        self._suppressed[-tts_config.CONTROL_IDS :] = True
        self._suppressed[talker_config.codec_eos_token_id] = False

    @torch.no_grad()
    def embed_clips(self, clips: Tensor) -> Tensor:
        """Return speaker vectors (clips, hidden) of (clips, samples) at 24 kHz."""
        config = self.config.speaker_encoder_config
        assert config is not None
        return speaker_embedding(self.ops, self._weights, config, speaker_mel(clips))

    @torch.no_grad()
    def speak(
        self,
        texts: list[str],
        voices: list[str] | Tensor,
        mode: TextMode,
        sampling: Sampling,
        seed: int = 0,
        most_frames: int = 130,
    ) -> list[Tensor]:
        """Generate the codes (frames, codebooks) of each text, with named voices or vectors."""
        generator = torch.Generator(self.device).manual_seed(seed)
        x, lengths, tracks = self._prompts(texts, voices, mode)
        rows, longest = x.shape[:2]
        stack = self.config.talker_config
        cache = RowCache(rows, longest + most_frames, stack, self.ops)
        hidden = talker.hidden_states(self.ops, self._weights, self.config, x, cache)
        hidden = hidden[torch.arange(rows, device=self.device), lengths - 1]
        cache.at = lengths.clone()
        end = self.config.talker_config.codec_eos_token_id
        frames, ends = [], torch.full((rows,), most_frames, device=self.device)
        for frame in range(most_frames):
            logits = talker.codec_logits(self.ops, self._weights, hidden)
            logits = logits.masked_fill(self._suppressed, -torch.inf)
            if frame < 2:
                logits[:, end] = -torch.inf
            first = draw(logits, sampling, generator)
            ends = torch.where((first == end) & (ends == most_frames), frame, ends)
            if bool((ends < most_frames).all()):
                break
            codes = talker.predict_codes(
                self.ops,
                self._weights,
                self.config,
                hidden,
                first.clamp_max(self.codec.decoder_config.codebook_size - 1),
                lambda values, _: draw(values, sampling, generator),
            )
            frames.append(codes)
            beside = tracks[:, min(frame, tracks.shape[1] - 1)]
            x = talker.embed_frame(self.ops, self._weights, codes)
            x = x + talker.embed_text(self.ops, self._weights, beside)
            hidden = talker.hidden_states(self.ops, self._weights, self.config, x[:, None], cache)
            hidden = hidden[:, 0]
            cache.at += 1
        everything = torch.stack(frames, 1)
        return [everything[row, : int(stop)] for row, stop in enumerate(ends.tolist())]

    def _prompts(
        self, texts: list[str], voices: list[str] | Tensor, mode: TextMode
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return embedded prompts (rows, longest, hidden), lengths (rows,) and text tracks."""
        config = self.config.talker_config
        prompts = []
        for row, text in enumerate(texts):
            role, ids = self._text.role_and_text(text)
            speaker = config.spk_id[voices[row]] if isinstance(voices, list) else SPEAKER
            language = config.codec_language_id["english"]
            voice = None if isinstance(voices, list) else VoicePrompt(voices[row].cpu().numpy())
            conditioning = Conditioning(language=language, speaker=speaker, voice=voice, mode=mode)
            prompts.append(assemble(self.config, conditioning, role, ids))
        text_ids, lengths = text_table([p.text.tolist() for p in prompts], self.device)
        codec_ids, _ = text_table([p.codec.tolist() for p in prompts], self.device)
        x = talker.embed_text(self.ops, self._weights, text_ids)
        controls = talker.embed_codec(self.ops, self._weights, codec_ids.clamp_min(0))
        inside = torch.arange(x.shape[1], device=self.device) < lengths[:, None]
        x = x + controls * ((codec_ids >= 0) & inside)[..., None]
        if not isinstance(voices, list):
            x = x + voices[:, None] * (codec_ids == SPEAKER)[..., None]
        pad = self.config.tts_pad_token_id
        longest = max(len(p.text_track) for p in prompts) + 1
        tracks = np.full((len(texts), longest), pad, np.int64)
        for row, prompt in enumerate(prompts):
            tracks[row, : len(prompt.text_track)] = prompt.text_track
        return x, lengths, torch.from_numpy(tracks).to(self.device)

    @torch.no_grad()
    def audio(self, codes: list[Tensor]) -> list[Tensor]:
        """Decode each row's codes (frames, codebooks) to (samples,) at 24 kHz."""
        longest = max(len(row) for row in codes)
        padded = torch.stack([F.pad(row, (0, 0, 0, longest - len(row))) for row in codes])
        pieces = []
        for start in range(0, len(padded), 64):
            part = padded[start : start + 64]
            state = zero_state(self.ops, self.codec, len(part))
            pieces.append(decode_audio(self.ops, self.codec_weights, self.codec, part, state)[0])
        made = torch.cat(pieces)
        return [made[row, : len(mine) * _FRAME] for row, mine in enumerate(codes)]


class Listener:
    """A transcriber of a folder; `weights` replace those of its file."""

    def __init__(
        self, folder: Path, device: torch.device, weights: Mapping[str, Tensor] | None = None
    ):
        self.device, self.ops = device, TorchOps(device)
        self.config = asr_config.read_config(folder)
        weights = load_file(folder / "model.safetensors") if weights is None else weights
        self._weights = {name: tensor.float().to(device) for name, tensor in weights.items()}
        self._tokenizer = QwenTokenizer(folder)
        self._template = Template(self._tokenizer)

    @torch.no_grad()
    def transcribe(self, clips: list[Tensor], most_tokens: int = 56) -> list[str]:
        """Transcribe clips greedily: (samples,) at 24 kHz each, whole frames, at most 8 s."""
        texts: list[str] = []
        for start in range(0, len(clips), 64):
            texts += self._transcribe(clips[start : start + 64], most_tokens)
        return texts

    def _transcribe(self, clips: list[Tensor], most_tokens: int) -> list[str]:
        clips = [clip[: 100 * _FRAME] for clip in clips]
        kept = torch.tensor([len(clip) * 2 // 3 for clip in clips], device=self.device)
        longest = max(max(len(clip) for clip in clips), 24_000)
        padded = torch.stack([F.pad(clip, (0, longest - len(clip))) for clip in clips])
        mel = whisper_mel(to_16k(padded), kept)
        tokens = token_counts(kept // _MEL_STEP)
        audio = encode_windows(
            self.ops, self._weights, self.config.audio, mel, windows=Windows(None, tokens)
        )
        x, lengths = self._prompts(audio, tokens)
        rows = torch.arange(len(clips), device=self.device)
        stack = self.config.text
        cache = RowCache(len(clips), x.shape[1] + most_tokens, stack, self.ops)
        written = []
        hidden = decode(self.ops, self._weights, stack, asr_config.TEXT_PREFIX, x, cache)
        hidden = hidden[rows, lengths - 1]
        cache.at = lengths.clone()
        for _ in range(most_tokens):
            token = F.linear(hidden, self._weights[asr_config.EMBEDDING]).argmax(-1)
            written.append(token)
            if bool((torch.stack(written) == self._template.end).any(0).all()):
                break
            x = F.embedding(token, self._weights[asr_config.EMBEDDING])[:, None]
            hidden = decode(self.ops, self._weights, stack, asr_config.TEXT_PREFIX, x, cache)[:, 0]
            cache.at += 1
        return [self._read(row) for row in torch.stack(written, 1).tolist()]

    def _prompts(self, audio: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        template = self._template
        embedding = self._weights[asr_config.EMBEDDING]
        before = F.embedding(torch.tensor(template.before, device=self.device), embedding)
        ids = torch.tensor([*template.after, *template.opening], device=self.device)
        after = F.embedding(ids, embedding)
        rows = [
            torch.cat([before, audio[row, :count], after])
            for row, count in enumerate(tokens.tolist())
        ]
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        longest = int(lengths.max())
        return torch.stack([F.pad(row, (0, 0, 0, longest - len(row))) for row in rows]), lengths

    def _read(self, ids: list[int]) -> str:
        end = self._template.end
        return self._tokenizer.decode(ids[: ids.index(end)] if end in ids else ids)
