"""English text as it is said: for checkpoints that were trained on plain words alone."""
