"""What the endpoints and the command line do: speak, transcribe, align, chat. No HTTP."""
