"""Audio as bytes and as samples: formats, rates, containers. Knows no model and no HTTP."""
