"""Qwen3 chat: the dense text models, which think before they answer or do not."""

from izwi.model.family import Family
from izwi_models.qwen3_chat.frontend import load_frontend
from izwi_models.qwen3_chat.gguf import GGUF
from izwi_models.qwen3_chat.prompt import ChatPrompt

FAMILY = Family(
    "qwen3", load_frontend, "izwi_models.qwen3_chat.model", prompts=(ChatPrompt,), gguf=GGUF
)

__all__ = ["FAMILY"]
