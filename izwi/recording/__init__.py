"""Recordings of requests, and their replay."""
