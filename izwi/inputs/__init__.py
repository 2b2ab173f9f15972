"""What callers ask for, before a model prepares it. Knows no model."""
