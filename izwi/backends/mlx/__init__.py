"""MLX: Apple's GPUs through Metal, and any CPU."""
