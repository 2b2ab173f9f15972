"""Qwen3-VL: chat about images, the dense models of 2B, 4B and 8B."""

from izwi.model.family import Family
from izwi_models.qwen3_vl.frontend import load_frontend
from izwi_models.qwen3_vl.prompt import VLPrompt

FAMILY = Family("qwen3_vl", load_frontend, "izwi_models.qwen3_vl.model", prompts=(VLPrompt,))

__all__ = ["FAMILY"]
