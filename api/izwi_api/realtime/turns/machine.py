"""Turn taking: a state machine from events to actions. Pure: no clock, no I/O.

    speech frames, words heard, playback, commits, cancels ──▶ advance ──▶ actions

Speech over an answer pauses it within `Rules.pause_ms`. If it is confirmed as an interruption, the
answer is cancelled, truncated to what was played, and a turn starts; otherwise the answer resumes.
While an answer plays, `SpeechStarted` is sent only for a confirmed interruption, because clients
then flush their playback. Times are milliseconds of input audio, except in `Tick`.
"""

from __future__ import annotations

from dataclasses import replace

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
from izwi_api.realtime.turns.rules import Detection, Speech, Verdict
from izwi_api.realtime.turns.state import AnswerState, State
from izwi_api.realtime.turns.words import only_stops, words_of


def advance(state: State, event: Event) -> tuple[State, list[Action]]:
    """Process one event; return the new state, and the actions in order."""
    step = _Step(state)
    match event:
        case Frame():
            step.frame(event)
        case LiveTranscript():
            step.take_transcript(event)
        case Transcript(text):
            step.answer_words(text)
        case Commit(end_ms):
            step.commit(end_ms)
        case Clear(end_ms):
            step.clear(end_ms)
        case Create():
            step.create()
        case Cancel(number):
            step.cancel(number)
        case Generated(number):
            step.finish(number, Status.COMPLETED)
        case Failed(number):
            step.finish(number, Status.FAILED)
        case Playback():
            step.playback(event)
        case PlaybackStopped(number, played_ms):
            step.silence(number, played_ms)
        case Tick(now_ms):
            step.tick(now_ms)
        case Configure(detection):
            step.configure(detection)
    return step.state, step.actions


class _Step:
    """One call of `advance`: the working state, and the actions so far."""

    def __init__(self, state: State):
        self.state = state
        self.actions: list[Action] = []

    # -- input audio -----------------------------------------------------------------------------
    def frame(self, frame: Frame) -> None:
        state, detection = self.state, self.state.detection
        length_ms = max(0, frame.end_ms - state.now_ms)
        self._set(now_ms=max(state.now_ms, frame.end_ms), frame_clock_ms=state.clock_ms)
        if detection is None:
            return
        if frame.speech >= detection.threshold:
            speech = state.speech or self._begin_speech(frame.end_ms - length_ms)
            self._set(speech=speech.longer(length_ms, frame.is_voiced), idle_ms=None)
            self._drop_speculation()  # the user keeps speaking
        elif state.speech is not None:
            silence_ms = state.speech.silence_ms + length_ms
            self._set(speech=replace(state.speech, silence_ms=silence_ms))
        hidden_ms = state.rules.hidden_ms(state.hidden_ms, length_ms, frame.is_hidden)
        self._set(hidden_ms=hidden_ms)
        self._judge()

    def take_transcript(self, heard: LiveTranscript) -> None:
        speech = self.state.speech
        if speech is not None:
            is_final = speech.is_final or (heard.is_final and speech.is_ended)
            self._set(heard=heard.text, speech=replace(speech, is_final=is_final))
            self._judge()

    def _judge(self) -> None:
        """Act on the speech so far."""
        state, detection = self.state, self.state.detection
        if detection is None or state.speech is None:
            return
        if state.turn_ms is not None:
            self._judge_turn(detection, state.speech)
        elif detection.interrupt_response and state.answer and state.answer.is_audible:
            self._judge_overlap(state.answer, state.speech)
        elif state.speech.speech_ms >= state.rules.start_ms:
            self._begin_turn(detection, state.speech)
        elif state.speech.silence_ms >= state.rules.refute_ms:
            if state.speech.voiced_ms >= state.rules.word_ms:
                self._set(short_ms=state.speech.onset_ms)
            self._set(speech=None, heard="")

    def _begin_speech(self, onset_ms: int) -> Speech:
        state, rules = self.state, self.state.rules
        since_ms = None if state.short_ms is None else onset_ms - state.short_ms
        is_second = since_ms is not None and since_ms <= rules.late_prefix_ms
        return Speech(onset_ms, is_late=is_second or state.hidden_ms >= rules.late_ms)

    def _judge_turn(self, detection: Detection, speech: Speech) -> None:
        state = self.state
        wait_ms = detection.wait_ms(state.heard)
        if speech.silence_ms >= wait_ms:
            self._end_turn(detection)
        elif self._may_speculate(detection, speech, wait_ms):
            self._set(speculation=state.next_number, next_number=state.next_number + 1)
            self.actions.append(Speculate(state.next_number))

    def _may_speculate(self, detection: Detection, speech: Speech, wait_ms: int) -> bool:
        early_ms = self.state.rules.speculate_ms
        if early_ms is None or not detection.create_response or self._is_responding():
            return False
        is_probable = speech.silence_ms >= max(1, min(early_ms, wait_ms // 2))
        return is_probable and self.state.speculation is None

    def _judge_overlap(self, answer: AnswerState, speech: Speech) -> None:
        state = self.state
        since_ms = state.now_ms - speech.onset_ms
        verdict = state.rules.judge(speech, since_ms, state.heard)
        if verdict is Verdict.CONFIRMED:
            # this order, as in OpenAI's API: clients truncate the answer that has not ended yet
            assert state.detection is not None
            self._begin_turn(state.detection, speech)
            self._interrupt(answer)
        elif verdict is Verdict.REFUTED:
            self._set(speech=None, heard="")
            self._resume()
        elif speech.speech_ms >= state.rules.pause_ms and not (answer.paused or answer.done):
            self._set(answer=replace(answer, paused=True))
            self.actions.append(Pause(answer.number))
        elif state.rules.needs_complete_transcript(speech):
            self._set(speech=replace(speech, is_ended=True))
            self.actions.append(CompleteTranscript())

    def _begin_turn(self, detection: Detection, speech: Speech) -> None:
        early_ms = self.state.rules.turn_start_ms(speech, detection.prefix_padding_ms)
        start_ms = max(self.state.buffer_ms, early_ms)
        self._set(turn_ms=start_ms, idle_ms=None)
        self.actions.append(SpeechStarted(start_ms))

    def _end_turn(self, detection: Detection) -> None:
        state = self.state
        assert state.turn_ms is not None
        silence_ms = state.speech.silence_ms if state.speech is not None else 0
        awaits_words = detection.create_response and state.rules.answers_words
        self.actions += [
            SpeechStopped(state.now_ms, silence_ms),
            CommitInput(state.turn_ms, state.now_ms, awaits_words),
        ]
        self._set(buffer_ms=state.now_ms, turn_ms=None, speech=None, heard="")
        if awaits_words:
            self._set(num_untranscribed=state.num_untranscribed + 1)
        elif detection.create_response:
            self._respond_when_free()

    def answer_words(self, text: str | None) -> None:
        """AnswerState a turn when its transcript arrives, unless it is empty or repeats a stop."""
        state = self.state
        if state.num_untranscribed == 0:
            return
        self._set(num_untranscribed=state.num_untranscribed - 1)
        is_said = text is None or bool(words_of(text))
        is_stop = text is not None and only_stops(text)
        is_said &= not (is_stop and state.was_stop)  # "Stop. Stop." is one stop
        self._set(was_stop=is_stop or (state.was_stop and not is_said))
        if not is_said and state.turn_ms is None:
            self._drop_speculation()
        if is_said or state.answer_due:
            self._set(answer_due=True)
            self._answer_if_due()

    # -- the client ------------------------------------------------------------------------------
    def commit(self, end_ms: int) -> None:
        state = self.state
        start_ms = state.buffer_ms if state.turn_ms is None else state.turn_ms
        if end_ms - start_ms < state.rules.least_commit_ms:
            self.actions.append(Refuse("input_audio_buffer_commit_empty"))
            return
        self._drop_turn(end_ms)
        self.actions.append(CommitInput(start_ms, end_ms))
        self._answer_if_due()

    def clear(self, end_ms: int) -> None:
        self._drop_turn(end_ms)
        self._answer_if_due()

    def create(self) -> None:
        if self._is_responding():
            self.actions.append(Refuse("conversation_already_has_active_response"))
            return
        self._drop_speculation()
        detection = self.state.detection
        if self.state.turn_ms is not None and detection is not None and detection.create_response:
            self._set(answer_due=True)  # to all of it, when the user has spoken
            return
        self._set(num_untranscribed=0)
        self._respond()

    def cancel(self, number: int | None) -> None:
        answer, silenced = self.state.answer, self.state.silenced
        if answer is not None and not answer.done and number in (None, answer.number):
            self._stop(answer, "client_cancelled")
        elif silenced is None or number not in (None, silenced):
            self.actions.append(Refuse("response_cancel_not_active"))

    def silence(self, number: int, played_ms: int) -> None:
        answer = self.state.answer
        if answer is None or answer.number != number:
            return
        if answer.done:
            self._set(answer=replace(answer, played_ms=answer.sent_ms))
            self._forget_if_silent()
        else:
            self._set(silenced=number)
            self._stop(replace(answer, played_ms=played_ms), "client_cancelled")

    def configure(self, detection: Detection | None) -> None:
        if detection is None or self.state.detection is None:
            self._set(turn_ms=None, speech=None, heard="", idle_ms=None)
        self._set(detection=detection)
        self._drop_speculation()
        # without a detector, or one that does not interrupt, nothing else would
        if self.state.speech is None or detection is None or not detection.interrupt_response:
            self._resume()
        self._answer_if_due()

    # -- the answer ------------------------------------------------------------------------------
    def finish(self, number: int, status: Status) -> None:
        answer = self.state.answer
        if answer is None or answer.done or answer.number != number:
            return  # already cancelled
        self.actions.append(Finish(number, status))
        self._set(answer=replace(answer, done=True, paused=False))
        self._forget_if_silent()
        self._answer_if_due()

    def playback(self, event: Playback) -> None:
        answer = self.state.answer
        if answer is None or answer.number != event.number:
            return
        self._set(answer=replace(answer, played_ms=event.played_ms, sent_ms=event.sent_ms))
        self._forget_if_silent()

    def tick(self, now_ms: int) -> None:
        self._set(clock_ms=now_ms)
        if now_ms - self.state.frame_clock_ms >= self.state.rules.muted_ms:
            self._resume_muted()
        state, detection = self.state, self.state.detection
        if detection is None or detection.idle_timeout_ms is None or state.idle_ms is None:
            return
        if state.turn_ms is None and now_ms - state.idle_ms >= detection.idle_timeout_ms:
            start_ms = max(state.buffer_ms, state.idle_from_ms)
            self.actions.append(TimedOut(start_ms, state.now_ms))
            self._set(buffer_ms=state.now_ms, idle_ms=None, speech=None, heard="")
            self._respond_when_free()

    def _respond_when_free(self) -> None:
        if self._is_responding():
            self._set(answer_due=True)
        else:
            self._respond()

    def _respond(self) -> None:
        state = self.state
        number = state.speculation
        if number is None:
            number = state.next_number
            self._set(next_number=number + 1)
        answer = AnswerState(number)
        self._set(answer=answer, silenced=None, speculation=None, answer_due=False, idle_ms=None)
        self.actions.append(Respond(number))

    def _interrupt(self, answer: AnswerState) -> None:
        """The user takes the turn."""
        self._set(answer_due=False)
        if answer.done:
            self.actions.append(Truncate(answer.number, answer.played_ms))
            self._set(answer=None)
        else:
            self._stop(answer, "turn_detected")

    def _stop(self, answer: AnswerState, reason: str) -> None:
        self.actions += [
            Finish(answer.number, Status.CANCELLED, reason),
            Truncate(answer.number, answer.played_ms),
        ]
        self._set(answer=None)
        self._answer_if_due()

    def _resume(self) -> None:
        if (answer := self.state.answer) is not None and answer.paused:
            self._set(answer=replace(answer, paused=False))
            self.actions.append(Resume(answer.number))

    def _resume_muted(self) -> None:
        """Resume a paused answer if the client was muted before the speech was classified."""
        answer = self.state.answer
        if answer is not None and answer.paused:
            self._set(speech=None, heard="")
            self._resume()

    def _drop_turn(self, end_ms: int) -> None:
        self._set(now_ms=max(self.state.now_ms, end_ms), buffer_ms=end_ms)
        self._set(turn_ms=None, speech=None, heard="")
        self._drop_speculation()
        self._resume()

    def _drop_speculation(self) -> None:
        if self.state.speculation is not None:
            self.actions.append(Discard(self.state.speculation))
            self._set(speculation=None)

    def _answer_if_due(self) -> None:
        is_free = self.state.turn_ms is None and not self._is_responding()
        if self.state.answer_due and is_free:
            self._respond()

    def _forget_if_silent(self) -> None:
        """Forget an answer that was played to its end."""
        state = self.state
        if state.answer is not None and not state.answer.is_audible:
            self._set(answer=None, idle_ms=state.clock_ms, idle_from_ms=state.now_ms)

    def _is_responding(self) -> bool:
        return self.state.answer is not None and not self.state.answer.done

    def _set(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]
