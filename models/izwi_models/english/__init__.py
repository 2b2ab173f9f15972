"""English text normalization for speech, for checkpoints that were trained on plain words."""
