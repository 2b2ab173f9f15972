"""The embedded checkpoints, and the recipes that make them again from nothing."""
