"""Attention implementations, a file each."""
