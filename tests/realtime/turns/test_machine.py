"""Turns: the effects of speech, silence, words and client events, and invariants."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi_api.realtime.turns.events import (
    Action,
    Cancel,
    Clear,
    Commit,
    CommitInput,
    CompleteTranscript,
    Configure,
    Create,
    Discard,
    Event,
    Failed,
    Finish,
    Frame,
    Generated,
    LiveTranscript,
    Pause,
    Playback,
    PlaybackStopped,
    Refuse,
    Respond,
    Resume,
    Speculate,
    SpeechStarted,
    SpeechStopped,
    Status,
    Tick,
    TimedOut,
    Transcript,
    Truncate,
)
from izwi_api.realtime.turns.machine import advance
from izwi_api.realtime.turns.rules import Detection, Rules, SemanticVad, ServerVad
from izwi_api.realtime.turns.state import State
from tests.examples import examples

FRAME_MS = 20
NO_SPECULATION = Rules(speculate_ms=None, hears_words=False)


@dataclass
class Session:
    """A session around the state machine: a client that plays 250 ms behind, and a log."""

    state: State = field(default_factory=State)
    log: list[Action] = field(default_factory=list)

    def advance(self, event: Event) -> list[Action]:
        self.state, actions = advance(self.state, event)
        self.log += actions
        return actions

    def frames(self, duration_ms: int, speech: float, is_voiced: bool = True) -> list[Action]:
        made = []
        for _ in range(duration_ms // FRAME_MS):
            made += self.advance(Frame(self.state.now_ms + FRAME_MS, speech, is_voiced))
        return made

    def speak(self, duration_ms: int) -> list[Action]:
        return self.frames(duration_ms, 0.9)

    def cough(self, duration_ms: int) -> list[Action]:
        return self.frames(duration_ms, 0.9, is_voiced=False)

    def be_silent(self, duration_ms: int) -> list[Action]:
        return self.frames(duration_ms, 0.1)


SERVER_VAD = ServerVad()


def session(detection: Detection | None = SERVER_VAD, rules: Rules = NO_SPECULATION) -> Session:
    return Session(State(detection=detection, rules=rules))


def answering(detection: Detection = SERVER_VAD, rules: Rules = NO_SPECULATION) -> Session:
    """A session in which a question was asked, and two seconds of the answer were played."""
    made = session(detection, rules)
    made.be_silent(400)
    made.speak(600)
    made.be_silent(500)
    assert made.log[-1] == Respond(0)
    made.advance(Playback(0, 2000, 2250))
    made.log.clear()
    return made


HEARS_NOTHING = Rules(hears_words=False)


# -- turns ---------------------------------------------------------------------------------------
def test_a_turn_begins_before_its_speech_and_ends_after_the_silence():
    turn = session()
    assert turn.be_silent(1000) == []
    assert turn.speak(600) == [SpeechStarted(1000 - 300)]
    assert turn.be_silent(480) == []
    assert turn.be_silent(20) == [SpeechStopped(2100), CommitInput(700, 2100), Respond(0)]


@pytest.mark.parametrize(
    ("hidden_ms", "prefix_ms"), [(0, 300), (100, 300), (200, 900), (3000, 900)]
)
def test_a_turn_whose_beginning_is_uncertain_begins_earlier(hidden_ms, prefix_ms):
    """Behind sound like speech that was taken for background: music, or soft speech in noise."""
    turn = session()
    turn.be_silent(2000)
    for _ in range(hidden_ms // FRAME_MS):
        turn.advance(Frame(turn.state.now_ms + FRAME_MS, 0.0, is_hidden=True))
    assert turn.speak(600) == [SpeechStarted(2000 + hidden_ms - prefix_ms)]


@pytest.mark.parametrize(
    ("voiced_ms", "pause_ms", "begins_ms"),
    [(80, 340, 2420 - 900), (40, 340, 2380 - 900), (20, 340, 2420 - 300), (80, 900, 2980 - 300)],
)
def test_a_first_word_that_was_mostly_lost_in_noise_belongs_to_the_turn(
    voiced_ms, pause_ms, begins_ms
):
    """The rest of the word is below the noise: what remains is too short to begin a turn."""
    turn = session()
    turn.be_silent(2000)
    turn.speak(voiced_ms)
    if voiced_ms == 20:
        for end_ms in (2040, 2060, 2080):
            turn.advance(Frame(end_ms, 1.0, is_voiced=False))
    turn.be_silent(pause_ms)
    assert turn.speak(600) == [SpeechStarted(begins_ms)]


def test_silence_makes_the_beginning_of_a_turn_certain_again():
    turn = session()
    turn.be_silent(2000)
    for _ in range(100):
        turn.advance(Frame(turn.state.now_ms + FRAME_MS, 0.0, is_hidden=True))
    turn.be_silent(400)
    assert turn.speak(600) == [SpeechStarted(4400 - 300)]


def test_a_short_pause_does_not_end_a_turn():
    turn = session()
    turn.speak(400)
    turn.be_silent(480)
    assert turn.speak(400) == []
    assert turn.be_silent(500)[-1] == Respond(0)


def test_a_click_does_not_begin_a_turn():
    turn = session()
    for _ in range(10):
        turn.speak(40)
        turn.be_silent(400)
    assert turn.log == []


def test_consecutive_turns_do_not_overlap():
    turn = session(ServerVad(silence_duration_ms=100))
    turn.speak(200)
    turn.be_silent(100)
    turn.advance(Generated(0))
    turn.speak(200)
    turn.be_silent(100)
    first, second = [action for action in turn.log if isinstance(action, CommitInput)]
    assert first.end_ms == second.start_ms == 300


@pytest.mark.parametrize(
    ("eagerness", "text", "wait_ms"),
    [
        ("medium", "What time is it?", 400),
        ("auto", "what time is it", 400),
        ("medium", "It is late.", 600),
        ("medium", "it was all very nice", 1200),
        ("medium", "I would like to", 4000),
        ("low", "I would like to", 8000),
        ("high", "I would like, ", 2000),
        ("high", "What time is it?", 240),
        ("medium", "", 1200),
    ],
)
def test_semantic_detection_waits_longer_after_incomplete_sentences(eagerness, text, wait_ms):
    turn = session(SemanticVad(eagerness))
    turn.speak(600)
    turn.advance(LiveTranscript(text))
    turn.be_silent(wait_ms + 20)
    stopped = next(action for action in turn.log if isinstance(action, SpeechStopped))
    assert wait_ms <= stopped.end_ms - 600 <= wait_ms + 20


def test_semantic_detection_uses_words_that_arrive_during_silence():
    turn = session(SemanticVad("medium"))
    turn.speak(600)
    turn.be_silent(1000)
    assert turn.advance(LiveTranscript("what is the"))[:1] == []
    turn.be_silent(1000)
    assert SpeechStopped(2600) in turn.advance(LiveTranscript("What is the time?"))


def test_without_detection_a_turn_ends_when_the_client_commits():
    turn = session(None)
    turn.speak(1000)
    turn.be_silent(1000)
    assert turn.log == []
    assert turn.advance(Commit(2010)) == [CommitInput(0, 2010)]
    assert turn.advance(Commit(2050)) == [Refuse("input_audio_buffer_commit_empty")]
    assert turn.advance(Create()) == [Respond(0)]
    assert turn.advance(Create()) == [Refuse("conversation_already_has_active_response")]
    assert turn.advance(Generated(0)) == [Finish(0, Status.COMPLETED)]
    assert turn.advance(Create()) == [Respond(1)]


def test_without_create_response_a_turn_is_only_committed():
    turn = session(ServerVad(create_response=False))
    turn.speak(600)
    assert turn.be_silent(500)[-1] == CommitInput(0, 1100)


def test_clearing_the_buffer_drops_the_turn():
    turn = session()
    turn.speak(600)
    turn.advance(Clear(600))
    assert turn.be_silent(1000) == []
    turn.speak(600)
    assert turn.log[-1] == SpeechStarted(1600 - 300)


def test_the_idle_timeout_counts_from_the_end_of_playback():
    turn = session(ServerVad(idle_timeout_ms=6000))
    turn.advance(Tick(100_000))
    assert turn.be_silent(200) == []  # there was no answer yet
    turn.advance(Create())
    turn.advance(Playback(0, 1000, 1250))
    turn.advance(Generated(0))
    turn.advance(Tick(110_000))
    turn.advance(Playback(0, 1250, 1250))
    assert turn.advance(Tick(115_900)) == []
    turn.be_silent(400)
    assert turn.advance(Tick(116_000)) == [TimedOut(200, 600), Respond(1)]


# -- words decide ------------------------------------------------------------------------------
WORDS_DECIDE = Rules(answers_words=True)


def spoken(rules=WORDS_DECIDE):
    """A session in which a turn has ended whose words are not known."""
    made = session(rules=rules)
    made.speak(600)
    made.be_silent(500)
    assert made.log[-1] == CommitInput(0, 1100, awaits_words=True)
    return made


def test_a_turn_is_answered_when_its_words_are_known():
    turn = spoken()
    assert turn.advance(Transcript("When?")) == [Respond(0)]
    assert turn.advance(Transcript("When?")) == []


@pytest.mark.parametrize("text", ["", " ", "..."])
def test_a_turn_without_words_is_not_answered(text):
    turn = spoken()
    assert turn.advance(Transcript(text)) == [Discard(0)]
    assert turn.be_silent(2000) == []


@pytest.mark.parametrize(
    ("first", "second", "is_answered"),
    [
        ("Stop.", "Stop, stop.", False),
        ("Stop it, please.", "Quiet!", False),
        ("Stop.", "When?", True),
        ("No.", "No.", True),
        ("Stop.", "Stop at the river.", True),
    ],
)
def test_a_repeated_stop_is_not_answered_again(first, second, is_answered):
    turn = spoken()
    assert turn.advance(Transcript(first)) == [Respond(0)]
    for _ in range(2):
        turn.speak(1000)
        turn.be_silent(500)
        if turn.state.answer is not None:
            turn.advance(Generated(turn.state.answer.number))
        made = turn.advance(Transcript(second))
        assert any(isinstance(action, Respond) for action in made) == is_answered
    turn.be_silent(2000)
    assert turn.state.speculation is None


def test_a_failed_transcription_still_triggers_a_response():
    assert spoken().advance(Transcript(None)) == [Respond(0)]


def test_a_transcript_that_arrives_during_new_speech_waits_for_its_end():
    turn = spoken()
    turn.speak(600)
    assert turn.advance(Transcript("When?")) == []
    turn.be_silent(500)
    assert turn.advance(Transcript("")) == [Discard(1), Respond(2)]


def test_a_response_created_by_the_client_replaces_the_automatic_one():
    turn = spoken()
    assert turn.advance(Create())[-1] == Respond(1)
    assert turn.advance(Transcript("When?")) == []


def test_words_of_a_turn_that_the_client_has_answered_bring_no_second_answer():
    turn = spoken()
    turn.advance(Create())
    turn.advance(Transcript("When?"))
    turn.advance(Generated(1))
    assert [action for action in turn.log if isinstance(action, Respond)] == [Respond(1)]


# -- a response that is requested while the user speaks -----------------------------------------
@pytest.mark.parametrize("rules", [NO_SPECULATION, WORDS_DECIDE, HEARS_NOTHING])
def test_a_response_waits_for_the_end_of_the_turn(rules):
    turn = session(rules=rules)
    turn.speak(600)
    made = turn.be_silent(300)
    dropped = [Discard(action.number) for action in made if isinstance(action, Speculate)]
    assert turn.advance(Create()) == dropped
    turn.speak(400)
    made = turn.be_silent(500)
    if rules.answers_words:
        assert not any(isinstance(action, Respond) for action in made)
        made = turn.advance(Transcript(""))  # a cough over the function's result
    assert sum(isinstance(action, Respond) for action in turn.log) == 1
    assert isinstance(made[-1], Respond)


@pytest.mark.parametrize("event", [Commit(900), Clear(900), Configure(None)])
def test_a_response_that_waits_begins_when_the_turn_is_dropped(event):
    turn = session()
    turn.speak(600)
    turn.be_silent(300)
    assert turn.advance(Create()) == []
    assert turn.advance(event)[-1] == Respond(0)
    assert turn.advance(Create()) == [Refuse("conversation_already_has_active_response")]


def test_without_automatic_answers_a_response_begins_at_once():
    turn = session(ServerVad(create_response=False))
    turn.speak(600)
    assert turn.advance(Create()) == [Respond(0)]


# -- an answer prepared early --------------------------------------------------------------------
def test_an_answer_is_prepared_at_a_probable_end():
    turn = session(rules=Rules(hears_words=False))
    turn.speak(600)
    assert turn.be_silent(500) == [
        Speculate(0),
        SpeechStopped(1100),
        CommitInput(0, 1100),
        Respond(0),
    ]


def test_a_prepared_answer_is_discarded_when_speech_continues():
    turn = session(rules=Rules(hears_words=False))
    turn.speak(600)
    turn.be_silent(300)
    assert turn.speak(20) == [Discard(0)]
    assert turn.be_silent(500)[-1] == Respond(1)


# -- speech over an answer -----------------------------------------------------------------------
def test_an_answer_pauses_for_a_cough_and_resumes():
    turn = answering()
    assert turn.speak(200) == [Pause(0)]
    assert turn.be_silent(240) == [Resume(0)]
    assert turn.speak(200) == [Pause(0)]


def test_a_paused_answer_resumes_when_the_microphone_is_muted():
    turn = answering()
    turn.advance(Tick(50_000))
    assert turn.speak(200) == [Pause(0)]
    assert turn.advance(Tick(50_900)) == []
    assert turn.advance(Tick(51_000)) == [Resume(0)]
    assert turn.advance(Tick(53_000)) == []
    assert turn.speak(200) == [Pause(0)]


def test_two_frames_of_speech_pause_an_answer():
    turn = answering()
    assert turn.speak(20) == []
    assert turn.speak(20) == [Pause(0)]


def test_continued_speech_interrupts_an_answer():
    turn = answering()
    turn.speak(280)
    assert turn.speak(20) == [
        SpeechStarted(1500),  # the prefix would reach into the turn before
        Finish(0, Status.CANCELLED, "turn_detected"),
        Truncate(0, 2000),
    ]
    turn.speak(600)
    assert turn.be_silent(500)[-1] == Respond(1)


HEARS = Rules(speculate_ms=None)


@pytest.mark.parametrize("text", ["Mm-hm.", "yeah", "Uh-huh, okay."])
def test_a_backchannel_does_not_interrupt(text):
    turn = answering(rules=HEARS)
    turn.speak(300)
    turn.advance(LiveTranscript(text))
    turn.speak(300)
    assert turn.be_silent(220) == [CompleteTranscript()]
    turn.advance(LiveTranscript(text, is_final=True))
    assert turn.be_silent(20) == [Resume(0)]
    assert turn.log == [Pause(0), CompleteTranscript(), Resume(0)]


@pytest.mark.parametrize(
    "text",
    ["I see.", "Go on.", "Ha ha ha.", "Got it, okay.", "Of course.", "Hm, I see, I see.", "Woof!"],
)
def test_backchannel_resumes_the_paused_answer(text):
    turn = answering(rules=HEARS)
    turn.speak(700)
    turn.advance(LiveTranscript(text))
    turn.be_silent(120)
    turn.advance(LiveTranscript(text, is_final=True))
    turn.be_silent(120)
    assert turn.log == [Pause(0), CompleteTranscript(), Resume(0)]


def test_a_long_hum_and_laughter_do_not_interrupt():
    turn = answering(rules=HEARS)
    turn.speak(760)  # without words so far
    turn.be_silent(120)
    turn.advance(LiveTranscript("Mm-hm.", is_final=True))
    turn.be_silent(120)
    assert turn.log == [Pause(0), CompleteTranscript(), Resume(0)]
    turn.speak(400)
    turn.advance(LiveTranscript("Uh-huh."))
    turn.speak(1500)
    assert not any(isinstance(action, SpeechStarted) for action in turn.log)
    assert SpeechStarted in map(type, turn.speak(100))


@pytest.mark.parametrize("text", ["I see the train.", "Go on holiday", "I know him", "Got two"])
def test_a_sentence_that_begins_like_that_interrupts(text):
    turn = answering(rules=HEARS)
    turn.speak(100)
    assert Finish(0, Status.CANCELLED, "turn_detected") in turn.advance(LiveTranscript(text))


@pytest.mark.parametrize("text", ["Stop", "no wait", "but I said"])
def test_words_interrupt_before_the_time_is_up(text):
    turn = answering(rules=HEARS)
    turn.speak(100)
    assert Finish(0, Status.CANCELLED, "turn_detected") in turn.advance(LiveTranscript(text))


def test_a_single_word_interrupts_only_after_half_a_second():
    turn = answering(rules=HEARS)
    turn.speak(300)
    assert turn.advance(LiveTranscript("Tomorrow")) == []
    assert turn.speak(180) == []
    assert SpeechStarted(1500) in turn.speak(20)


@pytest.mark.parametrize("early", ["", "Stuck", "Am a dog"])
def test_a_single_word_interrupts_once_it_is_transcribed_as_a_whole(early):
    turn = answering(rules=HEARS)
    turn.speak(200)
    assert turn.be_silent(100) == []
    # what is heard before the word has ended is often wrong
    assert turn.advance(LiveTranscript(early)) == []
    assert turn.be_silent(20) == [CompleteTranscript()]
    assert turn.be_silent(200) == []
    assert SpeechStarted(1500) in turn.advance(LiveTranscript("Stuckedox.", is_final=True))
    assert turn.be_silent(500)[-1] == Respond(1)


@pytest.mark.parametrize(("text", "early_ms"), [("Mm-hm.", 100), ("", 100), ("Yeah.", 300)])
def test_a_backchannel_transcribed_as_a_whole_does_not_interrupt(text, early_ms):
    turn = answering(rules=HEARS)
    turn.speak(200)
    turn.be_silent(120 + early_ms)
    turn.advance(LiveTranscript(text, is_final=True))
    turn.be_silent(140)
    assert turn.log == [Pause(0), CompleteTranscript(), Resume(0)]


@pytest.mark.parametrize(("voiced_ms", "interrupts"), [(0, False), (60, False), (80, True)])
@pytest.mark.parametrize("text", ["Toubt.", "Up the door."])
def test_words_interrupt_only_if_enough_of_the_utterance_has_pitch(voiced_ms, interrupts, text):
    turn = answering(rules=HEARS)
    turn.cough(200)
    turn.speak(voiced_ms)
    turn.be_silent(120)
    turn.advance(LiveTranscript(text, is_final=True))
    turn.be_silent(120)
    assert (Resume(0) in turn.log, SpeechStarted(1500) in turn.log) == (not interrupts, interrupts)


@pytest.mark.parametrize("rules", [HEARS, NO_SPECULATION])
def test_noise_interrupts_after_a_second(rules):
    turn = answering(rules=rules)
    turn.cough(980)
    assert turn.log == [Pause(0)]
    assert SpeechStarted(1500) in turn.cough(20)


def test_continued_speech_is_transcribed_as_a_whole_again():
    turn = answering(rules=HEARS)
    turn.speak(100)
    assert turn.be_silent(140) == [CompleteTranscript()]
    turn.speak(100)
    assert turn.advance(LiveTranscript("Thomas", is_final=True)) == []  # of the part before
    assert turn.be_silent(120) == [CompleteTranscript()]
    assert SpeechStarted(1500) in turn.advance(LiveTranscript("Thomas is", is_final=True))


def test_more_speech_after_a_final_transcript_leaves_the_turn_open():
    turn = answering(rules=HEARS)
    turn.speak(100)
    assert turn.be_silent(140) == [CompleteTranscript()]
    assert turn.advance(LiveTranscript("Mm-hm.", is_final=True)) == []
    turn.speak(100)
    assert turn.advance(LiveTranscript("Thomas")) == []  # one word of an utterance that goes on
    assert turn.be_silent(120) == [CompleteTranscript()]
    assert SpeechStarted(1500) in turn.advance(LiveTranscript("Thomas", is_final=True))


def test_a_missing_transcript_delays_an_answer_only_briefly():
    turn = answering(rules=HEARS)
    turn.speak(200)
    assert turn.be_silent(620) == [CompleteTranscript()]
    assert turn.be_silent(20) == [Resume(0)]


def test_a_click_is_not_transcribed_as_a_whole():
    turn = answering(rules=HEARS)
    turn.speak(60)
    assert turn.be_silent(240) == [Resume(0)]


def test_speech_interrupts_after_a_second_without_a_transcript():
    """The answer is paused meanwhile. A long hum has no words before its end."""
    turn = answering(rules=HEARS)
    turn.speak(980)
    assert turn.log == [Pause(0)]
    assert SpeechStarted(1500) in turn.speak(20)


def test_without_interruptions_the_turn_waits_for_the_answer():
    turn = answering(ServerVad(interrupt_response=False))
    turn.speak(600)
    turn.be_silent(500)
    assert [type(action) for action in turn.log] == [SpeechStarted, SpeechStopped, CommitInput]
    assert turn.advance(Generated(0)) == [Finish(0, Status.COMPLETED), Respond(1)]


def test_an_answer_that_is_sent_but_not_played_can_be_interrupted():
    turn = answering()
    turn.advance(Generated(0))
    turn.advance(Playback(0, 2100, 2250))
    turn.log.clear()
    assert turn.speak(300) == [SpeechStarted(1500), Truncate(0, 2100)]
    turn = answering()
    turn.advance(Generated(0))
    turn.advance(Playback(0, 2250, 2250))
    turn.log.clear()
    assert turn.speak(300) == [SpeechStarted(1500)]


def test_a_client_cancels_an_answer():
    turn = answering()
    assert turn.advance(Cancel(7)) == [Refuse("response_cancel_not_active")]
    assert turn.advance(Cancel()) == [
        Finish(0, Status.CANCELLED, "client_cancelled"),
        Truncate(0, 2000),
    ]
    assert turn.advance(Cancel()) == [Refuse("response_cancel_not_active")]
    assert turn.advance(Generated(0)) == []


def test_a_client_stops_playing_an_answer_in_progress():
    turn = answering()
    assert turn.advance(PlaybackStopped(7, 500)) == []
    assert turn.advance(PlaybackStopped(0, 500)) == [
        Finish(0, Status.CANCELLED, "client_cancelled"),
        Truncate(0, 500),
    ]
    # some cancel it, too, as they do where it would go on
    assert turn.advance(Cancel(0)) == turn.advance(Cancel()) == []
    assert turn.advance(Cancel(7)) == [Refuse("response_cancel_not_active")]
    assert turn.advance(Create()) == [Respond(1)]
    assert turn.advance(Cancel(0)) == [Refuse("response_cancel_not_active")]


def test_speech_after_the_client_stopped_playback_does_not_interrupt():
    turn = answering()
    turn.advance(Generated(0))
    assert turn.advance(PlaybackStopped(0, 500)) == []
    assert turn.state.answer is None
    assert turn.speak(200) == [SpeechStarted(turn.state.turn_ms)]
    assert turn.advance(Cancel()) == [Refuse("response_cancel_not_active")]


@pytest.mark.parametrize("event", [Clear(1700), Commit(1700)])
def test_a_paused_answer_resumes_when_the_client_commits_or_clears(event):
    turn = answering()
    turn.speak(100)
    assert Resume(0) in turn.advance(event)


@pytest.mark.parametrize("detection", [None, ServerVad(interrupt_response=False)])
def test_a_paused_answer_resumes_when_nothing_can_interrupt_it_any_more(detection):
    turn = answering()
    turn.speak(100)
    assert turn.advance(Configure(detection)) == [Resume(0)]


def test_a_paused_answer_stays_paused_when_the_detector_changes():
    turn = answering()
    turn.speak(100)
    assert turn.advance(Configure(ServerVad(silence_duration_ms=400))) == []
    turn.be_silent(1000)
    assert turn.log.count(Resume(0)) == 1


# -- any stream of events ------------------------------------------------------------------------
DETECTIONS = st.one_of(
    st.none(),
    st.builds(
        ServerVad,
        silence_duration_ms=st.integers(20, 600),
        prefix_padding_ms=st.integers(0, 600),
        idle_timeout_ms=st.none() | st.integers(100, 2000),
        create_response=st.booleans(),
        interrupt_response=st.booleans(),
    ),
    st.builds(
        SemanticVad, eagerness=st.sampled_from(["low", "high"]), interrupt_response=st.booleans()
    ),
)
WORDS = st.sampled_from(["", "mm-hm", "stop", "what is it?", "I would like to", "one two"])
HAPPENS = st.one_of(
    st.tuples(st.sampled_from(["speech", "cough"]), st.integers(1, 40)),
    st.tuples(st.just("silence"), st.integers(1, 60)),
    st.tuples(st.just("send"), st.integers(1, 30)),
    st.tuples(st.just("play"), st.integers(1, 40)),
    st.tuples(st.sampled_from(["heard", "heard all", "transcript"]), WORDS),
    st.tuples(st.just("configure"), DETECTIONS),
    st.tuples(
        st.sampled_from(["commit", "clear", "create", "cancel", "end", "fail", "stop playing"]),
        st.just(0),
    ),
)


class Played:
    """A driver and a client that follow the actions, and check that each is allowed."""

    def __init__(self, detection: Detection | None, answers_words: bool):
        self.session = Session(State(detection, Rules(answers_words=answers_words)))
        self.num_untranscribed = 0
        self.active: int | None = None
        self.paused = False
        self.prepared: int | None = None
        self.sent: dict[int, int] = {}
        self.played: dict[int, int] = {}
        self.history: dict[int, int] = {}
        self.ended: dict[int, Status] = {}
        self.turn: int | None = None
        self.clock_ms = 0

    def advance(self, event: Event) -> None:
        for action in self.session.advance(event):
            self.do(action)

    def do(self, action: Action) -> None:
        match action:
            case Speculate(number):
                assert self.prepared is None
                assert self.active is None
                assert number not in self.sent
                self.prepared = number
            case Discard(number):
                assert self.prepared == number
                self.prepared = None
            case Respond(number):
                assert self.active is None, "two responses are active"
                assert self.prepared in (None, number)
                assert number not in self.sent, "a number is used again"
                self.prepared, self.active, self.paused = None, number, False
                self.sent[number] = self.played[number] = 0
            case Pause(number):
                assert self.active == number
                assert not self.paused
                self.paused = True
            case Resume(number):
                assert self.active == number
                assert self.paused
                self.paused = False
            case Finish(number, status):
                assert self.active == number
                assert number not in self.ended
                self.ended[number], self.active, self.paused = status, None, False
                self.history[number] = self.sent[number]
            case Truncate(number, played_ms):
                assert number in self.ended
                self.history[number] = played_ms
            case SpeechStarted(start_ms):
                assert self.turn is None
                assert start_ms <= self.session.state.now_ms
                self.turn = start_ms
            case SpeechStopped():
                assert self.turn is not None
            case CommitInput(start_ms, end_ms, awaits_words):
                assert start_ms <= end_ms
                self.turn = None
                self.num_untranscribed += awaits_words

    def happen(self, kind: str, value: object) -> None:
        state = self.session.state
        match kind, value:
            case (("speech" | "cough" | "silence"), int(count)):
                for _ in range(count):
                    speech = 0.9 if kind in ("speech", "cough") else 0.0
                    now_ms = self.session.state.now_ms + FRAME_MS
                    self.advance(Frame(now_ms, speech, kind != "cough"))
                    self.clock_ms += FRAME_MS
                    self.advance(Tick(self.clock_ms))
            case "send", int(count):
                if self.active is not None and not self.paused:
                    self.sent[self.active] += count * FRAME_MS
                    self.report(self.active)
            case "play", int(count):
                for number in self.sent:
                    if self.history.get(number, 10**9) > self.played[number]:
                        limit = min(self.sent[number], self.history.get(number, 10**9))
                        self.played[number] = min(limit, self.played[number] + count * FRAME_MS)
                        self.report(number)
            case "heard", str(text):
                self.advance(LiveTranscript(text))
            case "heard all", str(text):
                self.advance(LiveTranscript(text, is_final=True))
            case "transcript", str(text):
                if self.num_untranscribed:
                    self.num_untranscribed -= 1
                    self.advance(Transcript(text))
            case "configure", _:
                if value is None or state.detection is None:
                    self.turn = None
                self.advance(Configure(value))  # type: ignore[arg-type]
            case "commit", _:
                self.advance(Commit(state.now_ms))
            case "clear", _:
                self.turn = None
                self.advance(Clear(state.now_ms))
            case "create", _:
                self.advance(Create())
            case "cancel", _:
                self.advance(Cancel())
            case "stop playing", _:
                for number in self.sent:
                    self.advance(PlaybackStopped(number, self.played[number]))
            case (("end" | "fail"), _):
                if self.active is not None and not self.paused:
                    number = self.active
                    self.advance(Generated(number) if kind == "end" else Failed(number))
                    assert number in self.ended

    def report(self, number: int) -> None:
        self.advance(Playback(number, self.played[number], self.sent[number]))


@examples(100)
@given(DETECTIONS, st.booleans(), st.lists(HAPPENS, max_size=40))
def test_the_state_stays_consistent_for_any_events(detection, answers_words, happens):
    world = Played(detection, answers_words)
    for kind, value in happens:
        world.happen(kind, value)
        answer = world.session.state.answer
        assert (answer is not None and not answer.done) == (world.active is not None)
        if world.active is not None:
            assert answer is not None
            assert (answer.number, answer.paused) == (world.active, world.paused)
    # a session that goes on in silence leaves nothing paused and nothing prepared for ever
    world.happen("silence", 500)
    while world.num_untranscribed:
        world.happen("transcript", "")
    assert not world.paused
    assert world.prepared is None or world.session.state.turn_ms is not None
    # exactly one end of each response, and the history holds what was played of those cut off
    assert set(world.ended) | ({world.active} - {None}) == set(world.sent)
    for number, status in world.ended.items():
        if status is Status.CANCELLED:
            assert world.history[number] == world.played[number]
        else:
            assert world.history[number] in (world.sent[number], world.played[number])
