"""What endpoints and commands do: speech, transcription, alignment, chat. Without HTTP."""
