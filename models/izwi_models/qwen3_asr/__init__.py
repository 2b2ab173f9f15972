"""Qwen3-ASR: speech to text in thirty languages."""

from izwi.model.family import Family
from izwi_models.qwen3_asr.frontend import load_frontend
from izwi_models.qwen3_asr.prompt import AsrPrompt

FAMILY = Family("qwen3_asr", load_frontend, "izwi_models.qwen3_asr.model", prompts=(AsrPrompt,))

__all__ = ["FAMILY"]
