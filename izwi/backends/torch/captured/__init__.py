"""Steps that CUDA captures once and repeats."""
