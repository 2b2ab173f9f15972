"""Benchmarks of chat models."""
