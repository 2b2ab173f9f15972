"""Qwen3-ASR: speech to text in thirty languages."""

from izwi_models.qwen3_asr.model import FAMILY, Qwen3ASR

__all__ = ["FAMILY", "Qwen3ASR"]
