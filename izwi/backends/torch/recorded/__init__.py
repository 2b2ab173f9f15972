"""Steps that CUDA records once and repeats."""
