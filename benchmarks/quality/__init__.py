"""How well the embedded checkpoints speak and hear."""
