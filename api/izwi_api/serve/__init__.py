"""API servers and engine in separate processes, connected by local sockets."""
