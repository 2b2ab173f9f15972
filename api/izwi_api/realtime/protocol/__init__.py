"""The Realtime protocol: events, settings, items, formats and errors."""
