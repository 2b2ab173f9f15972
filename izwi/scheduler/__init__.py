"""Decide what the next step runs."""
