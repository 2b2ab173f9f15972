"""Marks of tests that need a client library: without it, they are skipped and start no server."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def is_installed(module: str) -> bool:
    """Whether a module can be found. Its packages are imported, it is not."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of its package
        return False


def needs(*modules: str) -> pytest.MarkDecorator:
    """Skip a test unless all these modules are installed.

    `pytest.importorskip` in a test would skip it only after the server of its fixtures has started.
    """
    missing = [module for module in modules if not is_installed(module)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


needs_agents = needs("agents", "openai")
needs_livekit = needs("livekit.agents", "livekit.plugins.openai")
needs_pipecat = needs("pipecat.services.openai.llm")
