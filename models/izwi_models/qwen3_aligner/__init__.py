"""Qwen3-ForcedAligner: when each word of a text is spoken in a recording."""

from izwi_models.qwen3_aligner.model import FAMILY, Qwen3Aligner

__all__ = ["FAMILY", "Qwen3Aligner"]
