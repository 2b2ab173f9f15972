"""Live sessions: what every socket that stays open has in common."""
