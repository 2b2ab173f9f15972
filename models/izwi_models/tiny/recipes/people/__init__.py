"""Speech that sounds like people: synthesizers that learned from recordings."""
