"""Answers and conversations kept by id, for an hour."""
