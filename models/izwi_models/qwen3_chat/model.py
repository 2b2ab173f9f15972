"""Qwen3 chat for the engine: prefill of a conversation, then decoding of the answer."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from izwi.arrays import Int64
from izwi.checkpoints.folder import tensor_names
from izwi.errors import ContextTooLong, InvalidRequest
from izwi.inputs.chat import ChatInput, ToolChoice, num_characters
from izwi.inputs.grammar import Grammar
from izwi.model.capability import Capability
from izwi.model.protocol import Backend, Family
from izwi.model.step_batch import Row, Span
from izwi.ops import Array, Ops, Weights
from izwi.request.request import EncodeInput, Request, SamplingParams
from izwi_models.qwen3.decoder import pack
from izwi_models.qwen3.stop_ids import read_stop_ids
from izwi_models.qwen3.token_model import TokenModel, last_tokens, logged_tokens, token_head
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_chat.answer import ChatReader
from izwi_models.qwen3_chat.config import (
    EMBEDDING,
    HEAD,
    PREFIX,
    ChatConfig,
    GenerationConfig,
    read_config,
    read_generation_config,
    tensor_shapes,
)
from izwi_models.qwen3_chat.grammar import chat_grammar
from izwi_models.qwen3_chat.template import ChatTemplate, EncodedChat, Thinking, read_template

# For models with an optional thought, generation_config.json has the values for thinking. Their
# model card gives 0.7 and 0.8 for answers without a thought.
_UNTHINKING_TEMPERATURE, _UNTHINKING_TOP_P = 0.7, 0.8
# A text token has about four characters. Much longer text is rejected without tokenizing it,
# because tokenizing megabytes takes seconds.
_MAX_CHARACTERS_PER_POSITION = 32
# Characters that a template may add to messages of the maximum length.
_TEMPLATE_CHARACTERS = 1 << 16


class ChatPrompt(Struct, frozen=True, eq=False, tag=True):
    """A conversation in the template.

    Attributes:
        token_ids: (positions,) int64.
        in_thought: The prompt ends within the answer's thought.
        most_calls: Maximum number of function calls in the answer; -1 for no limit.
    """

    token_ids: Int64
    in_thought: bool
    most_calls: int = 0
    encode_inputs: tuple[EncodeInput, ...] = ()

    @property
    def num_positions(self) -> int:
        """Number of positions of the prompt."""
        return len(self.token_ids)


class Qwen3Chat(TokenModel):
    """One checkpoint on one device. Implements `izwi.model.protocol.ChatModel`."""

    capabilities = (Capability.CHAT,)

    def __init__(
        self,
        ops: Ops,
        weights: Weights,
        config: ChatConfig,
        generation: GenerationConfig,
        template: ChatTemplate,
        stop_ids: tuple[int, ...],
    ):
        head = token_head(ops, weights, config, EMBEDDING, HEAD)
        super().__init__(ops, weights, config, PREFIX, head)
        self._config = config
        self._generation, self._template, self._stop_ids = generation, template, stop_ids

    # -- called by the engine ----------------------------------------------------------------
    def encode(self, inputs: Seq[EncodeInput]) -> list[Array]:
        """Return nothing: the model reads only text."""
        assert not inputs
        return []

    def embed(self, rows: Seq[Row]) -> Array:
        """Return embeddings of the rows' positions, concatenated: (positions, hidden)."""
        return self.embed_inputs(self._ops.array(self.inputs(rows)))

    def inputs(self, rows: Seq[Row]) -> npt.NDArray[np.int64]:
        """Return (positions, 1) token ids."""
        usual = last_tokens(rows)
        if usual is not None:
            return usual
        return np.array([i for row in rows for i in _ids_of(row)], np.int64)[:, None]

    def content_keys(self, span: Span) -> list[int]:
        """Return content keys of positions: the token ids."""
        return _ids_of(span)

    # -- called by API servers ---------------------------------------------------------------------
    def prepare_chat(self, request_id: str, model: str, ask: ChatInput) -> Request:
        """Put a conversation into the template.

        `max_tokens` beyond the context window is accepted: the answer ends at the window's end.

        Raises:
            InvalidRequest: There is no message, a number is out of range, or the checkpoint does
                not support the requested mode of thinking.
            ContextTooLong: The conversation leaves no room for an answer.
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
            raise InvalidRequest(
                "the model's chat template makes no text of this conversation", param="messages"
            )
        room = self.max_positions - len(chat.ids)
        if room < 1:
            raise self._too_long(f"{len(chat.ids)} tokens")
        return Request(
            request_id,
            model,
            ChatPrompt(np.array(chat.ids, np.int64), chat.in_thought, _most_calls(ask)),
            sampling=sampling,
            seed=ask.seed,
            max_entries=min(room, ask.max_new_tokens or room),
            stop_ids=self._stop_ids,
            logprobs=ask.logprobs,
            grammar=self._grammar(ask, thinks=thinks),
            top_logprobs=min(ask.top_logprobs, self.tracks[0].vocabulary) if ask.logprobs else 0,
            ask=ask,
        )

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end an answer."""
        return self._stop_ids

    def spell_vocabulary(self) -> tuple[list[bytes], list[int]]:
        """Return the bytes of each id, and the ids of added tokens, which grammars name by id."""
        tokenizer = self._template.tokenizer
        added = tokenizer.added_tokens
        count = self.tracks[0].vocabulary
        return [tokenizer.spell(i, added) for i in range(count)], sorted(added.values())

    def open_answer(self, request: Request) -> ChatReader:
        """Return a reader for the output of a request from `prepare_chat`."""
        template, prompt = self._template, _prompt(request)
        return ChatReader(
            template.tokenizer, template.thought_ids, prompt.in_thought, prompt.most_calls
        )

    def _plain_ids(self, ask: ChatInput) -> list[int]:
        """Return the ids of a plain text to continue."""
        vocabulary = self.tracks[0].vocabulary
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
        vocabulary = self.tracks[0].vocabulary
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


def load(folder: Path, backend: Backend) -> Qwen3Chat:
    """Read a checkpoint in the published layout.

    Raises:
        CheckpointError: A file, key or tensor is missing or wrong; it is named.
    """
    config = read_config(folder)
    generation = read_generation_config(folder)
    template = read_template(folder, QwenTokenizer(folder))
    tied = config.tie_word_embeddings
    # a tied checkpoint may repeat the embedding as the head, which is then checked and dropped
    shapes = tensor_shapes(config, with_head=not tied or HEAD in tensor_names(folder))
    weights = dict(backend.load_weights(folder, shapes))
    if tied:
        weights.pop(HEAD, None)
    weights = pack(backend.ops, weights, config.decoder, PREFIX)
    stop_ids = read_stop_ids(folder, config.vocab_size)
    return Qwen3Chat(backend.ops, weights, config, generation, template, stop_ids)


FAMILY = Family("qwen3", load, prompts=(ChatPrompt,))


def _most_calls(ask: ChatInput) -> int:
    if not ask.tools or ask.tool_choice is ToolChoice.NONE:
        return 0
    return -1 if ask.parallel_tool_calls else 1


def _prompt(request: Request) -> ChatPrompt:
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt


def _ids_of(span: Span) -> list[int]:
    """Return the token ids of positions of prompt and log."""
    ids: list[int] = _prompt(span.request).token_ids[span.start : span.stop].tolist()
    return ids + logged_tokens(span)
