"""Qwen3-TTS 12 Hz: a talker over text and codec tracks, a code predictor and a speaker encoder."""

from izwi_models.qwen3_tts.loader import FAMILY

__all__ = ["FAMILY"]
