"""Benchmarks of kernels and codecs on a device."""
