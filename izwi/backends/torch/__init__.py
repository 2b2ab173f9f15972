"""The torch backend: CPUs, CUDA with our own kernels, and Apple GPUs through MPS."""
