"""Benchmarks of speech models."""
