"""HTTP: the app, its server, its middleware, its errors. Endpoints are in `routes/`."""
