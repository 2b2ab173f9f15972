"""Speech as tools of the Model Context Protocol, for assistants, over the Python client."""
