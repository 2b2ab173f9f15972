"""What is known of one call while it is answered, and where it goes: logs, metrics, traces."""
