"""Memory of sequences: pages and their counts, keys and values, codec state."""
