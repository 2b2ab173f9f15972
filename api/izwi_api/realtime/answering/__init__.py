"""Responses: what is asked of models, and their audio at the pace of its playback."""
