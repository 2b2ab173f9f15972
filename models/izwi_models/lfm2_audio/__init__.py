"""LFM2-Audio and LFM2.5-Audio: speech in, interleaved text and speech out."""

from izwi.model.family import Family
from izwi_models.lfm2_audio.config import ARCHITECTURE
from izwi_models.lfm2_audio.frontend import load_frontend
from izwi_models.lfm2_audio.prompt import LFM2Prompt

FAMILY = Family(ARCHITECTURE, load_frontend, "izwi_models.lfm2_audio.model", prompts=(LFM2Prompt,))

__all__ = ["FAMILY"]
