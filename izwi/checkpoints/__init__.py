"""Checkpoints: fetched, read, and served by name."""
