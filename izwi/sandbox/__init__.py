"""Limited processes for untrusted input, and what asks them."""
