"""Model families: how each kind of checkpoint computes, over `izwi.ops`."""

from izwi.model.family import Family
from izwi_models import (
    borrowed_chat,
    lfm2_audio,
    qwen3_aligner,
    qwen3_asr,
    qwen3_chat,
    qwen3_tts,
    qwen3_vl,
)

FAMILIES: tuple[Family, ...] = (
    borrowed_chat.FAMILY,
    lfm2_audio.FAMILY,
    qwen3_asr.FAMILY,
    qwen3_aligner.FAMILY,
    qwen3_chat.FAMILY,
    qwen3_tts.FAMILY,
    qwen3_vl.FAMILY,
)
