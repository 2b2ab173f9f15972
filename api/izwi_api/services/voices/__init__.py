"""The voices of requests: by name, from a clip, or from a description."""
