"""Formats in which quantized checkpoints are published: one file each, read into `LinearSpec`s."""
