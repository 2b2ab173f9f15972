"""Files and batches as OpenAI has them, imported only if they are served (IZWI_BATCHES)."""
