"""ElevenLabs' API: speech, voices and transcription, for its own SDK."""
