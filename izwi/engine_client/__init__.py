"""What callers of an engine see of it: the protocol, and the stream of an answer."""
