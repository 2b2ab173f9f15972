"""The process on its host: its threads, and how it allocates memory."""
