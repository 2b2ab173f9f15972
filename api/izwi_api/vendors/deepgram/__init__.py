"""Deepgram's API: transcription and speech over HTTP and WebSockets, for its own SDK."""
