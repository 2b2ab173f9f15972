"""HTTP API and command line. Asks the registry for models by capability, names none."""
