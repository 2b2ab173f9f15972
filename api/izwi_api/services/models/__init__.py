"""Models by name: aliases, and loading at run time."""
