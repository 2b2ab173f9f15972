"""Live voice: turn taking, audio in and out, sessions and their protocol. Independent of HTTP."""
