"""Whose turn it is: a pure state machine over speech, words and time."""
