"""The frontend of any text model: its own tokenizer and template, and plain answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from izwi.checkpoints.folder import read_json
from izwi.errors import InvalidRequest, UnsupportedParameter
from izwi.inputs.chat import ChatInput, has_images
from izwi.model.capability import Capability
from izwi.request.request import Request
from izwi_models.borrowed_chat.config import DEFAULTS, AnyConfig, read_config, read_stop_ids
from izwi_models.borrowed_chat.tokenizer import AnyTemplate, JsonTokenizer
from izwi_models.qwen3_chat.answer import ChatReader
from izwi_models.qwen3_chat.config import GenerationConfig, read_generation_config
from izwi_models.qwen3_chat.frontend import ChatPreparation
from izwi_models.qwen3_chat.prompt import ChatPrompt, prompt_of
from izwi_models.qwen3_chat.template import ChatTemplate, EncodedChat, read_template


class AnyChatFrontend:
    """The frontend of one checkpoint. Implements `izwi.model.frontend.ChatFrontend`.

    Attributes:
        runner: What runs the model.
    """

    capabilities = (Capability.CHAT,)
    runner = "transformers"

    def __init__(
        self,
        config: AnyConfig,
        generation: GenerationConfig,
        template: ChatTemplate,
        stop_ids: tuple[int, ...],
    ):
        self._config, self._template = config, template
        self._chat = ChatPreparation(config, generation, template, stop_ids)

    @property
    def max_positions(self) -> int:
        return self._config.max_position_embeddings

    def prepare_chat(self, request_id: str, model: str, ask: ChatInput) -> Request:
        """Put a conversation into the template.

        Raises:
            InvalidRequest: As `Qwen3ChatFrontend.prepare_chat`; also for what this runner lacks.
            ContextTooLong: The conversation leaves no room for an answer.
        """
        _check(ask)

        def prompt(chat: EncodedChat, most_calls: int) -> ChatPrompt:
            return ChatPrompt(np.array(chat.ids, np.int64), chat.in_thought, most_calls)

        return self._chat.prepare(request_id, model, ask, prompt)

    def open_answer(self, request: Request) -> ChatReader:
        """Return a reader for the output of a request from `prepare_chat`."""
        template = self._template
        return ChatReader(template.tokenizer, template.thought_ids, prompt_of(request).in_thought)


def load_frontend(folder: Path) -> AnyChatFrontend:
    """Read configuration, tokenizer and template.

    Raises:
        CheckpointError: A file or key is missing or wrong; it is named.
    """
    config, tokenizer = read_config(folder), JsonTokenizer(folder)
    generation = read_generation_config(folder, DEFAULTS)
    # not among what can be chosen for each request, so it has no effect
    generation = replace(generation, min_p=0.0, repetition_penalty=1.0)
    template = read_template(folder, tokenizer, AnyTemplate)
    end = _end_id(folder, tokenizer)
    stop_ids = read_stop_ids(folder, config.vocab_size, end)
    return AnyChatFrontend(config, generation, template, stop_ids)


def _end_id(folder: Path, tokenizer: JsonTokenizer) -> int | None:
    path = folder / "tokenizer_config.json"
    named = read_json(path).get("eos_token") if path.is_file() else None
    content = named.get("content") if isinstance(named, dict) else named
    return tokenizer.added_tokens.get(content) if isinstance(content, str) else None


def _check(ask: ChatInput) -> None:
    """Refuse what transformers' batches cannot do for one request of several."""
    lacking = {
        "tools": bool(ask.tools),
        ask.grammar_param: bool(ask.response_schema or ask.regex or ask.ebnf),
        "logprobs": ask.logprobs,
        "logit_bias": bool(ask.logit_bias),
        "min_p": bool(ask.min_p),
        "repetition_penalty": ask.repetition_penalty not in (None, 1.0),
        "presence_penalty": ask.presence_penalty != 0.0,
        "frequency_penalty": ask.frequency_penalty != 0.0,
    }
    for name, is_asked in lacking.items():
        if is_asked:
            message = f"a model that transformers runs has no {name}"
            raise UnsupportedParameter(message, param=name)
    if has_images(ask):
        raise InvalidRequest("this model cannot see images", param="messages")
