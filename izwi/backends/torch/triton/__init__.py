"""Operations on CUDA, in Triton. Imported only where the package triton is."""
