"""Benchmarks of live voice and speech to speech."""
