"""API servers and engine in processes of their own, joined by local sockets."""
