"""HTTP: the server, its middleware and its errors. Endpoints are in `routes/`."""
