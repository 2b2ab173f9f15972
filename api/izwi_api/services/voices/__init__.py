"""The voices of requests: by name, and encoded from clips."""
