"""Recipes: text, synthesised speech and training of the embedded checkpoints. They need torch."""
