"""Operations on CUDA, in Triton. Imported only if the package triton is installed."""
