"""Kernels that stay on the device for many dependent steps, in CUDA C++."""
