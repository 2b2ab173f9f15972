"""Requests, the sequences that they become, and their logs. Knows no model and no cache."""
