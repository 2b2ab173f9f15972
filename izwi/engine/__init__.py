"""The loop, the models in it, and the thread that steps it."""
