"""Requests for files and batches that our OpenAPI schema allows or forbids are answered so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.specs.openapi.checks import positive_data_acceptance

from izwi_api.serve.app import create_app
from izwi_api.settings import Settings
from tests.api.conftest import FakeEngine, FakeRegistry, FakeSpeech, listening
from tests.api.one_connection import one_connection
from tests.examples import examples

pytestmark = pytest.mark.slow

FOLDER = TemporaryDirectory()
app = create_app(
    FakeEngine(), FakeRegistry(tts=FakeSpeech()), Settings(home=Path(FOLDER.name), batches=True)
)
description = app.openapi()
schema = schemathesis.openapi.from_dict(description)
PATHS = [path for path in description["paths"] if re.match("/v1/(files|batches)", path)]
# A file's life has an anchor and a number of seconds, which need each other.
UNTOLD = ("POST /v1/files",)


@pytest.fixture(scope="module")
def session():
    with one_connection() as session:
        yield session


@pytest.fixture(scope="module")
def base_url():
    with FOLDER, listening(app) as port:
        yield f"http://127.0.0.1:{port}"


@examples(5, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def check(case, base_url, session):
    excluded = [positive_data_acceptance] if f"{case.method} {case.path}" in UNTOLD else []
    case.call_and_validate(base_url=base_url, session=session, excluded_checks=excluded, timeout=60)


def operation(method: str, path: str) -> Callable[..., None]:
    """Make the test of one operation; see tests/api/routes/test_schemathesis.py."""

    def test(base_url, session):
        one = schema.include(method=method, path=path)
        (made,) = get_all_tests(schema=one, test_func=check, settings=None, given_kwargs=None)
        made.ok()[1](base_url=base_url, session=session)

    return test


for path in PATHS:
    for method in description["paths"][path]:
        name = re.sub(r"\W+", "_", f"test_{method}{path}").rstrip("_")
        globals()[name] = operation(method.upper(), path)


def test_all_operations_are_tested() -> None:
    assert len([name for name in globals() if name.startswith("test_")]) == 9 + 1
