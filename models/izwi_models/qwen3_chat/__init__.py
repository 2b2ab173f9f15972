"""Qwen3 chat: the dense text models, which think before they answer or do not."""

from izwi_models.qwen3_chat.model import FAMILY, Qwen3Chat

__all__ = ["FAMILY", "Qwen3Chat"]
