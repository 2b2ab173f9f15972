"""Stored voices: their files and index, clips, consents, and what models speak with."""
