"""Attention implementations, one file each."""
