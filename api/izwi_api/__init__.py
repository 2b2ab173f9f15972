"""HTTP API and command line. Asks the registry for models by task, names none."""
