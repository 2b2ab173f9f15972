"""Qwen3 chat for API servers: conversations to requests, and answers to text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec.structs import replace

from izwi.errors import ContextTooLong, InvalidRequest
from izwi.inputs.chat import ChatInput, ToolChoice, has_images, num_characters
from izwi.inputs.grammar import Grammar
from izwi.model.capability import Capability
from izwi.request.request import Prompt, Request, SamplingParams
from izwi_models.qwen3.stop_ids import read_stop_ids
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_chat.answer import ChatReader
from izwi_models.qwen3_chat.config import (
    ChatConfig,
    GenerationConfig,
    read_config,
    read_generation_config,
)
from izwi_models.qwen3_chat.grammar import chat_grammar
from izwi_models.qwen3_chat.prompt import ChatPrompt, prompt_of
from izwi_models.qwen3_chat.template import ChatTemplate, EncodedChat, Thinking, read_template

# For models with an optional thought, generation_config.json has the values for thinking. Their
# model card gives 0.7 and 0.8 for answers without a thought.
_UNTHINKING_TEMPERATURE, _UNTHINKING_TOP_P = 0.7, 0.8
# A text token has about four characters. Much longer text is rejected without tokenizing it,
# because tokenizing megabytes takes seconds.
_MAX_CHARACTERS_PER_POSITION = 32
# Characters that a template may add to messages of the maximum length.
_TEMPLATE_CHARACTERS = 1 << 16


class ContextSizes(Protocol):
    """What preparation needs of a configuration."""

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        ...

    @property
    def max_position_embeddings(self) -> int:
        """Maximum number of positions."""
        ...


class ChatPreparation:
    """Conversations to requests, for models with this template, whatever their prompts hold."""

    def __init__(
        self,
        config: ContextSizes,
        generation: GenerationConfig,
        template: ChatTemplate,
        stop_ids: tuple[int, ...],
    ):
        self._config = config
        self._generation, self._template, self._stop_ids = generation, template, stop_ids

    @property
    def max_positions(self) -> int:
        """Maximum number of positions of the checkpoint."""
        return self._config.max_position_embeddings

    def prepare(
        self,
        request_id: str,
        model: str,
        ask: ChatInput,
        make_prompt: Callable[[EncodedChat, int], Prompt],
    ) -> Request:
        """Put a conversation into the template; see `Qwen3ChatFrontend.prepare_chat`.

        Args:
            request_id: As in `ChatFrontend.prepare_chat`, as are the next two.
            model: Name of the model.
            ask: The conversation.
            make_prompt: Makes the prompt of the conversation's ids, and of the maximum number of
                function calls in the answer.
        """
        if not (ask.messages or ask.text or ask.token_ids):
            raise InvalidRequest("there is no message to answer", param="messages")
        if ask.max_new_tokens is not None and ask.max_new_tokens < 1:
            raise InvalidRequest("max_new_tokens must be at least 1", param="max_tokens")
        thinks = self._template.thinks(ask.thinking)
        sampling = self._sampling(ask, thinks=thinks)
        size = num_characters(ask)
        if size > _MAX_CHARACTERS_PER_POSITION * self.max_positions:
            raise self._too_long(f"{size} characters")
        if len(ask.messages) > self.max_positions:
            raise self._too_long(f"{len(ask.messages)} messages")
        max_chars = _MAX_CHARACTERS_PER_POSITION * self.max_positions + _TEMPLATE_CHARACTERS
        if ask.messages:
            chat = self._template.encode(ask, thinks=thinks, max_chars=max_chars)
        else:
            chat = EncodedChat(self._plain_ids(ask), False)
        if not chat.ids:
            raise InvalidRequest("the chat template rendered an empty prompt", param="messages")
        prompt = make_prompt(chat, _most_calls(ask))
        room = self.max_positions - prompt.num_positions
        if room < 1:
            raise self._too_long(f"{prompt.num_positions} tokens")
        return Request(
            request_id,
            model,
            prompt,
            sampling=sampling,
            seed=ask.seed,
            max_entries=min(room, ask.max_new_tokens or room),
            stop_ids=self._stop_ids,
            logprobs=ask.logprobs,
            grammar=self._grammar(ask, thinks=thinks),
            top_logprobs=min(ask.top_logprobs, self._config.vocab_size) if ask.logprobs else 0,
            ask=ask,
        )

    def _plain_ids(self, ask: ChatInput) -> list[int]:
        """Return the ids of a plain text to continue."""
        vocabulary = self._config.vocab_size
        if any(not 0 <= index < vocabulary for index in ask.token_ids):
            raise InvalidRequest(f"input_ids must be below {vocabulary}", param="input_ids")
        return list(ask.token_ids) or self._template.encode_text(ask.text)

    def _grammar(self, ask: ChatInput, *, thinks: bool) -> Grammar | None:
        thought = self._template.thought_ids
        # text without a template has no thought before the answer
        has_thought = thinks and thought is not None and bool(ask.messages)
        after = thought[1] if has_thought and thought is not None else -1
        grammar = chat_grammar(ask, self._template.tokenizer, after)
        if grammar is not None and not self._stop_ids:
            raise InvalidRequest("this model has no token that ends an answer", param="model")
        return grammar

    def _sampling(self, ask: ChatInput, *, thinks: bool) -> SamplingParams:
        own = self._generation.sampling
        if self._template.thinking is Thinking.ASKED and not thinks and self._generation.do_sample:
            own = replace(own, temperature=_UNTHINKING_TEMPERATURE, top_p=_UNTHINKING_TOP_P)
        params = replace(
            own,
            temperature=own.temperature if ask.temperature is None else ask.temperature,
            top_k=own.top_k if ask.top_k is None else ask.top_k,
            top_p=own.top_p if ask.top_p is None else ask.top_p,
            min_p=own.min_p if ask.min_p is None else ask.min_p,
            repetition_penalty=(
                own.repetition_penalty if ask.repetition_penalty is None else ask.repetition_penalty
            ),
            presence_penalty=ask.presence_penalty,
            frequency_penalty=ask.frequency_penalty,
            logit_bias=ask.logit_bias,
        )
        if not 0.0 <= params.temperature < float("inf"):
            raise InvalidRequest("temperature must not be negative", param="temperature")
        if params.top_k < 0:
            raise InvalidRequest("top_k must not be negative", param="top_k")
        if not 0.0 < params.top_p <= 1.0:
            raise InvalidRequest("top_p must be above 0, and at most 1", param="top_p")
        if not 0.0 <= params.min_p <= 1.0:
            raise InvalidRequest("min_p must be from 0 to 1", param="min_p")
        if not 0.0 < params.repetition_penalty < float("inf"):
            raise InvalidRequest("repetition_penalty must be above 0", param="repetition_penalty")
        vocabulary = self._config.vocab_size
        for index, _ in params.logit_bias:
            if not 0 <= index < vocabulary:
                raise InvalidRequest(
                    f"logit_bias: {index} is no token of this model, which has {vocabulary}",
                    param="logit_bias",
                )
        return params

    def _too_long(self, size: str) -> ContextTooLong:
        return ContextTooLong(
            f"the conversation has {size}; the model has room for {self.max_positions} tokens, its "
            "answer included",
            param="messages",
        )


class Qwen3ChatFrontend:
    """The frontend of one checkpoint. Implements `izwi.model.frontend.ChatFrontend`."""

    capabilities = (Capability.CHAT,)

    def __init__(
        self,
        config: ChatConfig,
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

        `max_tokens` beyond the context window is accepted: the answer ends at the window's end.

        Raises:
            InvalidRequest: There is no message, a number is out of range, or the checkpoint does
                not support the requested mode of thinking.
            ContextTooLong: The conversation leaves no room for an answer.
        """

        def prompt(chat: EncodedChat, most_calls: int) -> ChatPrompt:
            return ChatPrompt(np.array(chat.ids, np.int64), chat.in_thought, most_calls)

        if has_images(ask):
            raise InvalidRequest("this model cannot see images", param="messages")
        return self._chat.prepare(request_id, model, ask, prompt)

    def open_answer(self, request: Request) -> ChatReader:
        """Return a reader for the output of a request from `prepare_chat`."""
        template, prompt = self._template, prompt_of(request)
        return ChatReader(
            template.tokenizer, template.thought_ids, prompt.in_thought, prompt.most_calls
        )


def load_frontend(folder: Path) -> Qwen3ChatFrontend:
    """Read configuration, tokenizer and template.

    Raises:
        CheckpointError: A file or key is missing or wrong; it is named.
    """
    config = read_config(folder)
    template = read_template(folder, QwenTokenizer(folder))
    stop_ids = read_stop_ids(folder, config.vocab_size)
    return Qwen3ChatFrontend(config, read_generation_config(folder), template, stop_ids)


def _most_calls(ask: ChatInput) -> int:
    if not ask.tools or ask.tool_choice is ToolChoice.NONE:
        return 0
    return -1 if ask.parallel_tool_calls else 1
