"""A chat model that runs in the engine, token by token, with words that a test chooses."""

from __future__ import annotations

import re

from msgspec.structs import replace

from izwi.inputs.chat import AnswerText, CallText


class ScriptedReader:
    """Reads the next word of the script for every token, whatever the token is.

    A script "CALL name arguments" is the call of a function.
    """

    num_reasoning_tokens = num_calls = 0
    ended = False

    def __init__(self, words):
        self.words = list(words)
        self.is_call = self.words[:1] == ["CALL"]
        self.name = ""

    def read(self, token_ids):
        said, self.words = self.words[: len(token_ids)], self.words[len(token_ids) :]
        if not self.is_call:
            return AnswerText(content="".join(said))
        calls = []
        for word in said:
            if word != "CALL" and not self.name:
                self.name = word.strip()
                calls.append(CallText(0, self.name))
            elif word != "CALL":
                calls.append(CallText(0, "", word))
        return AnswerText(calls=tuple(calls))

    def close(self):
        return AnswerText()


class ScriptedChat:
    """`write` gets the messages and returns the answer, one token per word."""

    def __init__(self, model, write):
        self.model, self.write, self.asked = model, write, []

    def __getattr__(self, name):
        return getattr(self.model, name)

    def prepare_chat(self, request_id, model, ask):
        self.asked.append(ask)
        words = re.findall(r"\s*\S+", self.write(ask.messages))
        request = self.model.prepare_chat(request_id, model, ask)
        return replace(request, max_entries=len(words), min_entries=len(words), stop_ids=())

    def open_answer(self, request):
        return ScriptedReader(re.findall(r"\s*\S+", self.write(request.ask.messages)))


class ScriptedRegistry:
    """A registry whose chat model answers with the test's words."""

    def __init__(self, registry, name, write):
        self.registry = registry
        self.scripted = ScriptedChat(registry.chat(name), write)

    def __getattr__(self, name):
        return getattr(self.registry, name)

    def model(self, name):
        found = self.registry.model(name)
        return self.scripted if found is self.scripted.model else found

    def chat(self, name):
        self.registry.chat(name)
        return self.scripted
