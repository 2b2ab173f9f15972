"""Operations of audio encoders and codecs in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from izwi.backends.torch.conv import linear_in_fours
from izwi.ops.protocol import AttentionSpec

# Maximum number of relative-position scores computed at once: five minutes of speech have 112
# million in each layer of a conformer.
_MOST_SCORES = 1 << 24


class TorchAudioOps:
    """Operations that `TorchOps` overrides with faster ones than the compositions."""

    def conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        stride: int,
        padding: int,
        groups: int = 1,
    ) -> Tensor:
        return F.conv2d(x, weight, bias, stride=stride, padding=padding, groups=groups)

    def relative_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        distances: Tensor,
        *,
        spec: AttentionSpec,
        biases: tuple[Tensor, Tensor],
        key_lengths: Tensor | None = None,
    ) -> Tensor:
        batch, tokens, _ = q.shape
        heads, head_dim = spec.num_heads, spec.head_dim
        q, k, v = (x.reshape(batch, tokens, heads, head_dim).transpose(1, 2) for x in (q, k, v))
        positional = (q + biases[1][:, None]) * head_dim**-0.5
        q = q + biases[0][:, None]
        d = distances.view(-1, heads, head_dim).permute(1, 2, 0)  # (heads, head_dim, distances)
        hidden: Tensor | None = None
        if key_lengths is not None:
            keys = torch.arange(tokens, device=q.device)
            hidden = (keys >= key_lengths[:, None])[:, None, None]  # (batch, 1, 1, keys)
        parts: list[Tensor] = []
        block = max(1, _MOST_SCORES // (batch * heads * tokens))
        for start in range(0, tokens, block):
            stop = min(start + block, tokens)
            # of distance 0 stands at tokens - 1; these queries see stop - 1 .. start + 1 - tokens
            near = d[..., tokens - stop : 2 * tokens - 1 - start]
            scores = _by_key(positional[:, :, start:stop] @ near, tokens)
            if hidden is not None:
                scores = scores.masked_fill(hidden, float("-inf"))
            parts.append(F.scaled_dot_product_attention(q[:, :, start:stop], k, v, scores))
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        return out.transpose(1, 2).reshape(batch, tokens, heads * head_dim)

    def spectral_frames(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).float()
        spectrum = linear_in_fours(rows, weight.float(), bias.float())
        log_magnitude, angle = spectrum.chunk(2, dim=-1)
        length = weight.shape[0] - 2
        frames: Tensor = torch.fft.irfft(torch.polar(log_magnitude.exp(), angle), length)
        frames = frames * torch.hann_window(length, device=x.device)
        return frames.view(*x.shape[:-1], length)


def _by_key(scores: Tensor, tokens: int) -> Tensor:
    """Reindex scores from distance to key.

    Args:
        scores: (batch, heads, queries, tokens + queries - 1): for query i, the distance to key 0 is
            at index queries - 1 - i, followed by the distances to the next keys.
        tokens: Number of keys.

    Returns:
        (batch, heads, queries, tokens), in the same memory.
    """
    scores = scores.contiguous()
    batch, heads, queries, width = scores.shape
    strides = (heads * queries * width, queries * width, width - 1, 1)
    return scores.as_strided((batch, heads, queries, tokens), strides, queries - 1)
