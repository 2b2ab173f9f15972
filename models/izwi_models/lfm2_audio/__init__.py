"""LFM2-Audio and LFM2.5-Audio: speech in, text and speech out, in turns."""

from izwi_models.lfm2_audio.loader import FAMILY

__all__ = ["FAMILY"]
