"""Qwen3-TTS 12 Hz: a talker over text and codec tracks, a code predictor and a speaker encoder."""

from izwi.model.family import Family
from izwi_models.qwen3_tts.frontend import load_frontend
from izwi_models.qwen3_tts.prompt import SpeechPrompt

FAMILY = Family("qwen3_tts", load_frontend, "izwi_models.qwen3_tts.model", prompts=(SpeechPrompt,))

__all__ = ["FAMILY"]
