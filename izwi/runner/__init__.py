"""Execute plans: rows to batches, batches to the model, logits to ids."""
