"""Live sessions: what all long-lived sockets have in common."""
