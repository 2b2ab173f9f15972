"""Earlier answers are found by id for an hour, by their caller and model alone."""

from __future__ import annotations

import pytest

from izwi.errors import InvalidRequest
from izwi_api.services.kept_answers import KeptAnswers

ANSWER = ((200,), (1, 2, 3, 4, 5, 6, 7, 8), (2048,) * 8, (0,))


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_answer_comes_back_as_it_was(clock):
    kept = KeptAnswers(clock=clock)
    name, expires_at = kept.keep("anna", "s2s", ANSWER)
    assert name.startswith("audio_")
    assert expires_at == 1000 + 3600
    assert kept.find("anna", "s2s", name) == ANSWER
    other, _ = kept.keep("anna", "s2s", ())
    assert other != name
    assert kept.find("anna", "s2s", other) == ()


@pytest.mark.parametrize(
    ("owner", "model", "match"), [("ben", "s2s", "no answer"), ("anna", "other", "'s2s'")]
)
def test_it_is_no_one_elses(clock, owner, model, match):
    kept = KeptAnswers(clock=clock)
    name, _ = kept.keep("anna", "s2s", ANSWER)
    with pytest.raises(InvalidRequest, match=match) as reported:
        kept.find(owner, model, name)
    assert reported.value.param == "messages"
    assert kept.find("anna", "s2s", name) == ANSWER


def test_it_expires(clock):
    kept = KeptAnswers(clock=clock)
    name, _ = kept.keep("", "s2s", ANSWER)
    clock.now += 3599.9
    assert kept.find("", "s2s", name) == ANSWER
    clock.now += 0.1
    with pytest.raises(InvalidRequest, match="60 minutes"):
        kept.find("", "s2s", name)
    assert kept.num_bytes == 0


def test_memory_is_bounded(clock):
    kept = KeptAnswers(clock=clock, max_bytes=10 * 4 * 8 * 4)
    names = [kept.keep("", "s2s", ANSWER)[0] for _ in range(25)]
    assert kept.num_bytes == 10 * 4 * 8 * 4
    for name in names[:15]:
        with pytest.raises(InvalidRequest):
            kept.find("", "s2s", name)
    assert [kept.find("", "s2s", name) for name in names[15:]] == [ANSWER] * 10


def test_an_id_that_never_was(clock):
    for name in ("", "audio_x", "x" * 10_000):
        with pytest.raises(InvalidRequest, match="no answer") as reported:
            KeptAnswers(clock=clock).find("", "s2s", name)
        assert len(str(reported.value)) < 300
