"""izwi: one engine loop for speech."""

__version__ = "0.1.0"
