"""Stored voices: files and index, clips, consents, and encoded prompts."""
