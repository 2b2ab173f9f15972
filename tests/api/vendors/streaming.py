"""A transcriber of live audio over the small engine: a word for each second, and one for a rest."""

from __future__ import annotations

from types import SimpleNamespace

from izwi.request.input_stream import PartialTranscript
from izwi.request.request import Request
from tests.api.conftest import FakePrompt, FakeTranscription


class FakeStreaming(FakeTranscription):
    def __init__(self):
        self.contexts = []

    def open_stream(self, *, language=None, context="", chunk_s=None):
        self.contexts.append((language, context))
        return FakeAudioStream()

    def prepare_stream_step(self, request_id, model, stream, step):
        text = " ".join(["word"] * step.num_words)
        return Request(request_id, model, FakePrompt("listen", text), max_entries=len(text))


class FakeAudioStream:
    room = 1 << 30

    def __init__(self):
        self.num_samples = self.num_given = 0
        self.closed = self.is_over = False

    def write(self, samples):
        self.num_samples += len(samples)

    def close(self):
        self.closed = True

    def is_due(self, more=0):
        if self.is_over:
            return False
        return self.closed or (self.num_samples + more) // 16_000 > self.num_given

    def next_step(self):
        self.num_given = self.num_samples // 16_000
        is_final = self.closed
        self.is_over = is_final
        return SimpleNamespace(num_words=self.num_given + is_final, is_final=is_final)

    def add_tokens(self, step, token_ids):
        text = "".join(map(chr, token_ids))
        end_s = self.num_samples / 16_000
        stable = text if step.is_final else ""
        return PartialTranscript(0, 0.0, end_s, step.is_final, "English", text, stable)
