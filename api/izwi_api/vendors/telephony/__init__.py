"""Telephone calls, as Twilio and Vonage stream them, onto a live session."""
