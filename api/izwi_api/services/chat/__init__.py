"""Answers to a conversation, in text and in speech."""
