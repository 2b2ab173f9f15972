"""openai-python's own tests pass against our server, except for documented ones."""

from __future__ import annotations

import pytest

from tests.api.served import served
from tests.clients.openai_suite import (
    CHAT,
    ERRORS,
    EVERY_CLIENT,
    EXPECTED,
    RESOURCES,
    STRICT,
    Unfetchable,
    fetch,
    run_all,
    run_suite,
)

# a server and some hundred requests
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(
    scope="module",
    params=[STRICT, EVERY_CLIENT],
    ids=["strict blocking clients", "every client"],
)
def outcomes(request, tmp_path_factory):
    try:
        return run_all(tmp_path_factory.mktemp("suite"), choice=request.param)
    except Unfetchable as error:
        pytest.skip(str(error))


def test_every_test_ends_as_written_down(outcomes):
    assert [outcome for outcome in outcomes if not outcome.is_as_expected] == []


@pytest.mark.slow  # they send to mocks, and wait between what they send
def test_the_sdk_maps_errors_as_expected(tmp_path):
    try:
        suite = fetch()
    except Unfetchable as error:
        pytest.skip(str(error))
    with served(tmp_path) as server:
        outcomes = run_suite(suite, server.url, tmp_path, ERRORS)
    assert len(outcomes) > 20
    assert [outcome for outcome in outcomes if not outcome.is_as_expected] == []


def test_every_expected_refusal_occurs(outcomes):
    refused = {outcome.refusal() for outcome in outcomes}
    assert [entry for entry in EXPECTED if entry not in refused] == []


def test_sdk_tests_send_requests_to_the_server(outcomes):
    ours = [outcome for outcome in outcomes if outcome.test.startswith((*RESOURCES, CHAT))]
    passed = [outcome for outcome in ours if outcome.outcome == "passed"]
    assert len(ours) > 80
    assert len(passed) > 0.7 * len(ours)
    for outcome in ours:
        if "aiohttp" in outcome.test:  # sends by another way than the one that counts
            continue
        # An empty id in a path is refused by the SDK itself.
        assert (outcome.num_sent > 0) is ("path_params" not in outcome.test), outcome
