"""Serve from one process: engine and HTTP, without sockets between them."""

from __future__ import annotations

import socket

from izwi.engine.async_engine import AsyncEngine
from izwi.host.allocator import settle
from izwi_api.http.app_state import AppState
from izwi_api.http.server import Server, server_config
from izwi_api.serve.announcement import announce
from izwi_api.serve.app import create_app
from izwi_api.serve.local_services import open_engine
from izwi_api.serve.options import ADDRESS_TAKEN, ServeOptions
from izwi_api.serve.process_log import log_memory
from izwi_api.serve.recording import recorded
from izwi_api.services.chat.answer import start_ahead
from izwi_api.services.models.adapter_option import check_adapters


class _AnnouncedServer(Server):
    """A server that prints the page's address once it accepts connections."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and print the address."""
        await super().startup(sockets)
        if self.started and self.servers:
            host, port = self.config.host, self.servers[0].sockets[0].getsockname()[1]
            scheme = "https" if self.config.is_ssl else "http"
            name = f"[{host}]" if ":" in host else host
            announce(f"{scheme}://{name}:{port}")


def serve_in_process(serve_options: ServeOptions, host: str, port: int) -> int:
    """Serve until a signal asks to stop; returns the exit code.

    Raises:
        IzwiError: A model or a setting cannot be used.
        OSError: A file that the options name cannot be used.
    """
    registry, backend, stepped = open_engine(
        serve_options.sources, serve_options.runtime, serve_options.config
    )
    check_adapters(serve_options.adapters, registry.names())
    for name, folder in serve_options.adapters.items():
        registry.load_folder(name, folder, str(folder))
    engine = AsyncEngine(stepped)
    with recorded(engine, serve_options.record, registry, backend, serve_options.runtime):
        app = create_app(engine, registry, serve_options.settings)
        log_memory(engine.load)
        state: AppState = app.state.izwi
        state.services.decoder.start()
        start_ahead(registry)
        if not serve_options.settings.manage_models:  # unloaded models may leave cycles behind
            settle()
        settings = serve_options.settings
        config = server_config(app, host, port, settings.pace.max_head_s, settings.tls)
        server = _AnnouncedServer(config, state.drain, serve_options.drain_s)
        server.run()
    return 0 if server.started else ADDRESS_TAKEN  # uvicorn has logged it
