"""Speech of a text, whole or while it is written."""
