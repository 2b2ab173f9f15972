"""Live voice: turns, sound on its way in and out, sessions and their protocol. Knows no HTTP."""
