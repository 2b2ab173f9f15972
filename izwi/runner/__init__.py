"""Run a plan: rows to batches, batches to the model, logits to picks."""
