"""Backends: everything with arrays, one folder each."""
