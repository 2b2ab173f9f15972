"""HTTP API and command line. Looks models up by capability, never by name."""
