"""Transcripts and word times, of files and of audio that arrives."""
