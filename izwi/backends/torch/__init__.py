"""Torch: CPUs, CUDA with kernels of our own, and Apple's GPUs through MPS."""
