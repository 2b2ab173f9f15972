"""Keys of callers: their limits, what they have used, and metering at the engine."""
