"""Everything in one process: engine, doors, and no sockets between them."""

from __future__ import annotations

from izwi.allocator import settle
from izwi.async_engine import AsyncEngine
from izwi.engine import Engine
from izwi_api.app import create_app
from izwi_api.app_state import AppState
from izwi_api.cli.runtime import load_models
from izwi_api.http_server import Server, server_config
from izwi_api.serve.plan import ADDRESS_TAKEN, Plan
from izwi_api.serve.process_log import leave_queries_out, tell_memory
from izwi_api.serve.recording import recorded


def serve_in_process(plan: Plan, host: str, port: int) -> int:
    """Serve until somebody asks to leave; the exit code.

    Raises:
        IzwiError: A model or a setting cannot be used.
        OSError: A file that the plan names cannot be used.
    """
    registry, backend = load_models(plan.sources, plan.where)
    engine = AsyncEngine(Engine(registry.models, backend.ops, plan.config))
    with recorded(engine, plan.record_trace, registry, backend, plan.where):
        app = create_app(engine, registry, plan.settings)
        tell_memory(engine.load)
        leave_queries_out()
        state: AppState = app.state.izwi
        state.door.decoder.start()
        if not plan.settings.manage_models:  # models that go may leave cycles behind
            settle()
        config = server_config(app, host, port, plan.settings.pace.max_head_s)
        server = Server(config, state.drain, plan.drain_s)
        server.run()
    return 0 if server.started else ADDRESS_TAKEN  # uvicorn has said so
