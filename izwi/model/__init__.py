"""The protocols of a model family, and the values between it and the engine."""
