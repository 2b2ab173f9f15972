"""The Wyoming protocol, by which Home Assistant speaks and listens, over the Python client."""
