"""Whose work is next: callers, and start-time fair queueing among them."""
