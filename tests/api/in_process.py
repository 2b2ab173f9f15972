"""Real models behind a live server in this process, on the CPU in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve.app import create_app
from izwi_api.serve.local_services import open_services
from izwi_api.services.context import Services
from tests.api.conftest import listening


def services_of(home: Path, *sources: str | Path) -> Services:
    """Load models by folder or name; voices are kept under `home`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IZWI_HOME", str(home))
        return open_services([*map(str, sources)], RuntimeOptions("cpu", "float32"))


@contextmanager
def serving(home: Path, *sources: str | Path) -> Iterator[tuple[str, Services]]:
    """Serve models by folder or name; yields the server's URL and what it works with."""
    services = services_of(home, *sources)
    app = create_app(services.engine, services.registry, services.settings)
    with listening(app) as port:
        yield f"http://127.0.0.1:{port}", services
