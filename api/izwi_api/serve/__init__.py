"""The app, and its processes: API servers and engine, connected by local sockets."""
