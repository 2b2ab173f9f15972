"""Benchmarks of transcription."""
