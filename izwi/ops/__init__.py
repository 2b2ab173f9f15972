"""The operations of models: one protocol, one file per backend."""

from izwi.ops.protocol import Array, AttentionContext, AttentionSpec, Ops, ScratchContext, Weights

__all__ = ["Array", "AttentionContext", "AttentionSpec", "Ops", "ScratchContext", "Weights"]
