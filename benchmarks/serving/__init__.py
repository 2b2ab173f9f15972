"""Benchmarks of a whole server, its processes and its loop."""
