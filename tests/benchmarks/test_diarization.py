"""The score of who speaks when."""

from benchmarks.asr.diarization import Spoken, score


def test_other_names_for_the_same_turns_are_no_error():
    truth = [Spoken(0, 4, "ann"), Spoken(4, 8, "bob")]
    found = [Spoken(0, 4, "B"), Spoken(4.1, 8, "A")]
    assert score(truth, found)[:3] == (0, 0, 0)


def test_each_kind_of_error_is_counted_once():
    truth = [Spoken(0, 4, "ann"), Spoken(6, 10, "bob")]
    errors = score(truth, [Spoken(0, 4, "A"), Spoken(5, 8, "A")])
    assert [round(value, 1) for value in errors] == [1.8, 0.8, 1.8, 7.0]
