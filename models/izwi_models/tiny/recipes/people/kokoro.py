"""Kokoro-82M in PyTorch: batches on a GPU, with durations and pitch that can be changed.

A StyleTTS2 model: an ALBERT and LSTMs read phonemes, a predictor says how long each lasts and how
high it is, and a harmonic-plus-noise decoder with an inverse STFT speaks. The first half of a style
is the voice's timbre, the second its prosody. Utterances of a batch need the same number of frames,
because the decoder's norms are over time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor, nn

RATE = 24_000
FRAME = 600  # samples of one frame of durations
TIMBRE = 128  # first values of a style
_HEADS = 12
_LAYERS = 12
_KERNELS = ((3, 7, 11), (1, 3, 5))  # of the residual blocks: widths, dilations
_NOISE_KERNELS = (7, 11)
_STRIDES = (10, 6)
_WINDOW, _HOP = 20, 5
_HARMONICS = 9
_SINE, _NOISE = 0.1, 0.003
_LEAST_VOICED_HZ = 10.0
_UNVOICED = _SINE / 3
_LEAK = 0.2


@dataclass(frozen=True, slots=True)
class Reading:
    """Phonemes as they were read.

    Attributes:
        durations: (rows, phonemes) frames of each; 0 for padding.
        prosody: (rows, phonemes, 640) what the pitch depends on.
        sound: (rows, phonemes, 512) what the decoder hears of the text.
    """

    durations: Tensor
    prosody: Tensor
    sound: Tensor


def styled(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Norm (rows, channels, steps) over time, scale by 1 + gain, and shift, (rows, channels)."""
    wide = x.float()
    variance, mean = torch.var_mean(wide, 2, correction=0, keepdim=True)
    scale = (1 + gain.float()[..., None]) * (variance + 1e-5).rsqrt()
    return (wide - mean) * scale + bias.float()[..., None]


def styled_snake(x: Tensor, gain: Tensor, bias: Tensor, alpha: Tensor) -> Tensor:
    """Norm as `styled` does, then x + sin^2(alpha x) / alpha."""
    y, wide = styled(x, gain, bias), alpha.float()
    return (y + torch.sin(wide * y).square() / wide).to(x.dtype)


class Kokoro:
    """The model on a device."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        compiled: bool = False,
    ):
        """Take the weights.

        Args:
            tensors: float32, from `kokoro_weights.load`.
            device: Where it runs.
            dtype: Of the decoder. Reading is in float32.
            compiled: Fuse the decoder's activation.
        """
        self.device, self.dtype = device, dtype
        self._plain = {name: tensor.to(device) for name, tensor in tensors.items()}
        self._weights = {
            name: tensor.to(dtype)
            for name, tensor in self._plain.items()
            if name.startswith("decoder.")
        }
        self._lstms = {
            name.removesuffix(".weight_ih_l0"): self._lstm(name.removesuffix(".weight_ih_l0"))
            for name in tensors
            if name.endswith(".weight_ih_l0")
        }
        self._window = torch.hann_window(_WINDOW, device=device)
        self._snake = torch.compile(styled_snake, dynamic=True) if compiled else styled_snake

    def _lstm(self, name: str) -> nn.LSTM:
        gates, inputs = self._plain[f"{name}.weight_ih_l0"].shape
        lstm = nn.LSTM(inputs, gates // 4, batch_first=True, bidirectional=True)
        lstm.load_state_dict({key: self._plain[f"{name}.{key}"] for key in lstm.state_dict()})
        return lstm.to(self.device).requires_grad_(False)

    def _run(self, name: str, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Run an LSTM over (rows, steps, width) of these lengths, on the CPU, or all."""
        lstm = self._lstms[name]
        if lengths is None:
            return lstm(x)[0]
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], True, total_length=x.shape[1])[0]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self._plain[f"{name}.weight"], self._plain[f"{name}.bias"])

    @torch.inference_mode()
    def read(self, tokens: Tensor, lengths: Tensor, styles: Tensor, pace: Tensor) -> Reading:
        """Read phonemes.

        Args:
            tokens: (rows, phonemes) int64, a 0 before and after each utterance, padded with 0.
            lengths: (rows,) int64 on the CPU, with those.
            styles: (rows, 256).
            pace: (rows,) speed; 1 is the voice's own.
        """
        kept = torch.arange(tokens.shape[1]) < lengths[:, None]
        kept = kept.to(self.device)
        x = self._linear("bert_encoder", self._bert(tokens, kept))
        manner = styles[:, None, TIMBRE:].expand(-1, tokens.shape[1], -1)
        x = torch.cat([x, manner], -1) * kept[..., None]
        for number in (0, 2, 4):
            name = f"predictor.text_encoder.lstms.{number}"
            x = self._run(name, x, lengths)
            scale, shift = self._linear(
                f"predictor.text_encoder.lstms.{number + 1}.fc", styles[:, TIMBRE:]
            )[:, None].chunk(2, -1)
            x = F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift
            x = torch.cat([x, manner], -1) * kept[..., None]
        logits = self._linear(
            "predictor.duration_proj.linear_layer", self._run("predictor.lstm", x, lengths)
        )
        durations = (logits.sigmoid().sum(-1) / pace[:, None]).round().clamp_min(1).long() * kept
        return Reading(durations, x, self._read_sound(tokens, lengths, kept))

    def _bert(self, tokens: Tensor, kept: Tensor) -> Tensor:
        """Read tokens (rows, steps) with the ALBERT: (rows, steps, 768)."""
        w, name = self._plain, "bert.embeddings"
        x = F.embedding(tokens, w[f"{name}.word_embeddings.weight"])
        x = x + w[f"{name}.position_embeddings.weight"][: tokens.shape[1]]
        x = x + w[f"{name}.token_type_embeddings.weight"][0]
        x = self._layer_norm(f"{name}.LayerNorm", x)
        x = self._linear("bert.encoder.embedding_hidden_mapping_in", x)
        layer = "bert.encoder.albert_layer_groups.0.albert_layers.0"
        for _ in range(_LAYERS):
            q, k, v = (
                self._linear(f"{layer}.attention.{part}", x)
                .unflatten(-1, (_HEADS, -1))
                .transpose(1, 2)
                for part in ("query", "key", "value")
            )
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=kept[:, None, None])
            mixed = self._linear(f"{layer}.attention.dense", mixed.transpose(1, 2).flatten(2))
            x = self._layer_norm(f"{layer}.attention.LayerNorm", x + mixed)
            y = F.gelu(self._linear(f"{layer}.ffn", x), approximate="tanh")
            y = self._linear(f"{layer}.ffn_output", y)
            x = self._layer_norm(f"{layer}.full_layer_layer_norm", x + y)
        return x

    def _layer_norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._plain[f"{name}.weight"], self._plain[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-12)

    def _read_sound(self, tokens: Tensor, lengths: Tensor, kept: Tensor) -> Tensor:
        """Embed tokens (rows, steps) for the decoder: (rows, steps, 512)."""
        x = F.embedding(tokens, self._plain["text_encoder.embedding.weight"]) * kept[..., None]
        for number in range(3):
            name = f"text_encoder.cnn.{number}"
            x = F.conv1d(
                x.mT, self._plain[f"{name}.0.weight"], self._plain[f"{name}.0.bias"], padding=2
            ).mT
            gamma, beta = self._plain[f"{name}.1.gamma"], self._plain[f"{name}.1.beta"]
            x = F.leaky_relu(F.layer_norm(x, x.shape[-1:], gamma, beta), _LEAK) * kept[..., None]
        return self._run("text_encoder.lstm", x, lengths)

    @torch.inference_mode()
    def pitch(self, prosody: Tensor, styles: Tensor) -> tuple[Tensor, Tensor]:
        """Predict pitch in Hz and loudness, (rows, 2 frames) each, from (rows, frames, 640)."""
        x = self._run("predictor.shared", prosody, None).mT
        curves = []
        for kind in ("F0", "N"):
            y = x
            for number in range(3):
                y = self._block(self._plain, f"predictor.{kind}.{number}", y, styles[:, TIMBRE:])
            name = f"predictor.{kind}_proj"
            curves.append(
                F.conv1d(y, self._plain[f"{name}.weight"], self._plain[f"{name}.bias"])[:, 0]
            )
        return curves[0], curves[1]

    @torch.inference_mode()
    def speak(
        self, sound: Tensor, pitch: Tensor, loudness: Tensor, styles: Tensor, noise: bool = True
    ) -> Tensor:
        """Make (rows, 600 frames) float32 audio at 24 kHz.

        Args:
            sound: (rows, frames, 512).
            pitch: (rows, 2 frames) Hz.
            loudness: (rows, 2 frames).
            styles: (rows, 256).
            noise: Add noise to the source, as it was trained with.
        """
        w, timbre = self._weights, styles[:, :TIMBRE].to(self.dtype)
        heard = sound.mT.to(self.dtype)
        curves = [
            F.conv1d(
                curve[:, None].to(self.dtype),
                w[f"decoder.{name}.weight"],
                w[f"decoder.{name}.bias"],
                stride=2,
                padding=1,
            )
            for name, curve in (("F0_conv", pitch), ("N_conv", loudness))
        ]
        x = self._block(w, "decoder.encode", torch.cat([heard, *curves], 1), timbre)
        rest = F.conv1d(heard, w["decoder.asr_res.0.weight"], w["decoder.asr_res.0.bias"])
        for number in range(4):
            x = torch.cat([x, rest, *curves], 1)
            x = self._block(w, f"decoder.decode.{number}", x, timbre)
        return self._generate(x, self._source(pitch, noise), timbre)

    def _block(self, w: Mapping[str, Tensor], name: str, x: Tensor, style: Tensor) -> Tensor:
        """Run a residual block with norms of a style; one with a pool doubles the frames."""
        pool = w.get(f"{name}.pool.weight")
        y = F.leaky_relu(self._styled(w, f"{name}.norm1", x, style), _LEAK)
        if pool is not None:
            y = F.conv_transpose1d(
                y,
                pool,
                w[f"{name}.pool.bias"],
                stride=2,
                padding=1,
                output_padding=1,
                groups=len(pool),
            )
            x = x.repeat_interleave(2, 2)
        y = F.conv1d(y, w[f"{name}.conv1.weight"], w[f"{name}.conv1.bias"], padding=1)
        y = F.leaky_relu(self._styled(w, f"{name}.norm2", y, style), _LEAK)
        y = F.conv1d(y, w[f"{name}.conv2.weight"], w[f"{name}.conv2.bias"], padding=1)
        if f"{name}.conv1x1.weight" in w:
            x = F.conv1d(x, w[f"{name}.conv1x1.weight"])
        return (x + y) * math.sqrt(0.5)

    def _style(self, w: Mapping[str, Tensor], name: str, style: Tensor) -> tuple[Tensor, Tensor]:
        """Return gain and bias (rows, channels) of a norm with a style."""
        gain, bias = F.linear(style, w[f"{name}.fc.weight"], w[f"{name}.fc.bias"]).chunk(2, 1)
        return gain, bias

    def _styled(self, w: Mapping[str, Tensor], name: str, x: Tensor, style: Tensor) -> Tensor:
        return styled(x, *self._style(w, name, style)).to(x.dtype)

    def _snakes(self, name: str, x: Tensor, style: Tensor, width: int) -> Tensor:
        """Run a residual block of three pairs of convolutions."""
        w = self._weights
        for number, dilation in enumerate(_KERNELS[1]):
            y = x
            for half, step in ((1, dilation), (2, 1)):
                factors = self._style(w, f"{name}.adain{half}.{number}", style)
                y = self._snake(y, *factors, w[f"{name}.alpha{half}.{number}"])
                conv = f"{name}.convs{half}.{number}"
                y = F.conv1d(
                    y,
                    w[f"{conv}.weight"],
                    w[f"{conv}.bias"],
                    padding=(width - 1) * step // 2,
                    dilation=step,
                )
            x = x + y
        return x

    def _source(self, pitch: Tensor, noise: bool) -> Tensor:
        """Spectrum of the sines of a pitch, and noise: (rows, 22, steps)."""
        harmonic = torch.arange(1, _HARMONICS + 1, device=pitch.device)[:, None]
        turns = (pitch[:, None] * harmonic / RATE) % 1
        hop = math.prod(_STRIDES) * _HOP
        phase = turns.double().cumsum(2) * (2 * math.pi * hop)
        phase = F.interpolate(phase, scale_factor=hop, mode="linear")
        sines = torch.sin(phase % (2 * math.pi)).float() * _SINE
        voiced = (pitch > _LEAST_VOICED_HZ).float()[:, None].repeat_interleave(hop, 2)
        sines = sines * voiced
        if noise:
            sines = sines + torch.randn_like(sines) * torch.where(voiced > 0, _NOISE, _UNVOICED)
        merged = self._linear("decoder.generator.m_source.l_linear", sines.mT)[..., 0].tanh()
        spectrum = torch.stft(merged, _WINDOW, _HOP, _WINDOW, self._window, return_complex=True)
        return torch.cat([spectrum.abs(), spectrum.angle()], 1).to(self.dtype)

    def _generate(self, x: Tensor, source: Tensor, style: Tensor) -> Tensor:
        w, name = self._weights, "decoder.generator"
        for number, stride in enumerate(_STRIDES):
            last = number == len(_STRIDES) - 1
            step = 1 if last else _STRIDES[1]
            hum = F.conv1d(
                source,
                w[f"{name}.noise_convs.{number}.weight"],
                w[f"{name}.noise_convs.{number}.bias"],
                stride=step,
                padding=0 if last else (step + 1) // 2,
            )
            hum = self._snakes(f"{name}.noise_res.{number}", hum, style, _NOISE_KERNELS[number])
            up = w[f"{name}.ups.{number}.weight"]
            x = F.conv_transpose1d(
                F.leaky_relu(x, 0.1),
                up,
                w[f"{name}.ups.{number}.bias"],
                stride=stride,
                padding=(up.shape[2] - stride) // 2,
            )
            if last:
                x = F.pad(x, (1, 0), "reflect")
            x = x + hum
            blocks = [
                self._snakes(f"{name}.resblocks.{3 * number + i}", x, style, width)
                for i, width in enumerate(_KERNELS[0])
            ]
            x = torch.stack(blocks).mean(0)
        x = F.leaky_relu(x)
        x = F.conv1d(x, w[f"{name}.conv_post.weight"], w[f"{name}.conv_post.bias"], padding=3)
        size, angle = x.float().split(_WINDOW // 2 + 1, 1)
        spectrum = torch.polar(size.exp(), angle.sin())
        return torch.istft(spectrum, _WINDOW, _HOP, _WINDOW, self._window)


def expand(values: Tensor, durations: Tensor, frames: int) -> Tensor:
    """Repeat each phoneme's values for its frames: (rows, steps, width) -> (rows, frames, width).

    Args:
        values: (rows, steps, width).
        durations: (rows, steps); each row adds up to `frames`.
        frames: Of every row.
    """
    return values.gather(1, places(durations, frames)[..., None].expand(-1, -1, values.shape[2]))


def places(durations: Tensor, frames: int) -> Tensor:
    """Return which phoneme each frame belongs to, (rows, frames)."""
    ends = durations.cumsum(1)
    at = torch.arange(frames, device=durations.device).expand(len(durations), -1).contiguous()
    return torch.searchsorted(ends, at, right=True).clamp_max(durations.shape[1] - 1)
