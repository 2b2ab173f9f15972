"""Qwen3-ForcedAligner: when each word of a text is spoken in a recording."""

from izwi.model.family import Family
from izwi_models.qwen3_aligner.config import is_aligner
from izwi_models.qwen3_aligner.frontend import load_frontend
from izwi_models.qwen3_aligner.prompt import AlignerPrompt

FAMILY = Family(
    "qwen3_asr",
    load_frontend,
    "izwi_models.qwen3_aligner.model",
    fits=is_aligner,
    prompts=(AlignerPrompt,),
)

__all__ = ["FAMILY"]
