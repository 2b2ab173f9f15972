"""One thread for torch: tiny models are all overhead, and the cores are shared with servers."""

import gc
import os
import ssl
from functools import cache
from typing import Any

import torch
import typer.testing
from hypothesis import settings

torch.set_num_threads(1)

# What is made while tests are collected stays to the end: garbage collection finds nothing.
gc.disable()

make_context = ssl.create_default_context
make_context_once = cache(make_context)


def create_default_context(*arguments: Any, **named: Any) -> ssl.SSLContext:
    """Read a file of certificates once.

    httpx reads it for every client, also for plain HTTP: 50 ms of processor time in most tests.
    """
    shared = named and not arguments
    return (make_context_once if shared else make_context)(*arguments, **named)


ssl.create_default_context = create_default_context

# CliRunner makes all commands of an app again for each call: 20 ms of processor time.
typer.testing._get_command = cache(typer.testing._get_command)

# what the command line is tested with does its own work, whatever server a developer runs
os.environ["IZWI_SERVER"] = "none"

# read when triton is imported, by whatever test is first: without a GPU its kernels are interpreted
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# `make test` draws the same examples each time, so that it fails for a change, not for its draw.
# `HYPOTHESIS_PROFILE=nightly make unit ARGS=tests/engine` draws new ones, 133 times as many.
settings.register_profile("test", max_examples=15, deadline=None, derandomize=True)
settings.register_profile("quick", max_examples=6, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))


def pytest_collection_finish() -> None:
    """Exempt objects that stay to the end from garbage collection: it took 5 % of the time."""
    gc.collect()
    gc.freeze()
    gc.enable()
