"""Images that a pipeline of diffusers draws, in a process of its own (ADR 52)."""
