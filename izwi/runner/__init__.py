"""Execute plans: form batches, run the model, sample ids from logits."""
