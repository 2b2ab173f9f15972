"""Every door of izwi: HTTP and the command line. Asks the registry for a task, names no model."""
