"""The user's audio: speech in it, echo and background, and its transcript."""
