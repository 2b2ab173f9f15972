"""Qwen3: the decoder stack and the byte-level tokenizer that its relatives share."""
