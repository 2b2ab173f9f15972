"""LFM2-Audio and LFM2.5-Audio: speech in, text and speech out, in turns."""
