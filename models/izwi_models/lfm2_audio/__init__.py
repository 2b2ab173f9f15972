"""LFM2-Audio and LFM2.5-Audio: speech in, interleaved text and speech out."""

from izwi_models.lfm2_audio.loader import FAMILY

__all__ = ["FAMILY"]
