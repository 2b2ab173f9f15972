"""KV memory: pages and reference counts, prefix tree, tiers; and codec state."""
