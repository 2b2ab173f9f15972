"""Operations: one table, a backend a file."""

from izwi.ops.protocol import Array, AttentionContext, AttentionSpec, Ops, ScratchContext, Weights

__all__ = ["Array", "AttentionContext", "AttentionSpec", "Ops", "ScratchContext", "Weights"]
