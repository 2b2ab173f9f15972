"""Constrain requests by grammars: compile them off the loop, then mask the tokens of each step.

A matcher is derived from the log: after a preemption, or in another engine, it is rebuilt from the
emitted tokens. llguidance computes the masks.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLTokenizer, TokenizerWrapper

from izwi.errors import InvalidRequest
from izwi.inputs.grammar import NO_ANSWER, Grammar, compile_grammar, explain
from izwi.model.protocol import SpellsTokens
from izwi.model.step_batch import Row
from izwi.sandbox.grammar_check import grammar_check

Masks = npt.NDArray[np.int32]


class _Vocabulary:
    """The tokenizer interface of llguidance. It tokenizes no text here, so bytes are enough."""

    def __init__(self, model: SpellsTokens):
        self.tokens, self.special_token_ids = model.spell_vocabulary()
        self.eos_token_id = model.end_ids[0]
        self.bos_token_id = None
        singles = {token: index for index, token in enumerate(self.tokens) if len(token) == 1}
        self._bytes = [singles.get(bytes([byte]), 0) for byte in range(256)]

    def __call__(self, text: bytes | str) -> list[int]:
        return [self._bytes[byte] for byte in (text.encode() if isinstance(text, str) else text)]


class Follower(NamedTuple):
    """The source of the mask of a request's next token.

    Attributes:
        matcher: The grammar's matcher in its current state.
        grammar: The grammar.
    """

    matcher: Any
    grammar: Grammar

    def check(self) -> None:
        """Raise InvalidRequest if the matcher has failed."""
        if self.matcher.is_error():
            message = explain(self.matcher.get_error(), self.grammar.source)
            raise InvalidRequest(message, param=self.grammar.param)


class GrammarState:
    """The grammar of one request, and its matcher's position in the log."""

    def __init__(self, grammar: Grammar, compiled: Future[Any]):
        self._grammar, self._compiled = grammar, compiled
        self._num_taken = 0
        self._begun = grammar.after < 0

    @property
    def is_ready(self) -> bool:
        """Whether compilation has succeeded or failed. Does not block."""
        return self._compiled.done()

    def follow(self, emitted: Sequence[tuple[int, ...]]) -> Follower | None:
        """Advance by the tokens emitted since the last call.

        Returns:
            What gives the mask of the next token; None before the grammar begins.

        Raises:
            InvalidRequest: The grammar cannot be compiled, or exceeds a limit.
        """
        matcher = self._compiled.result()
        for token, *_ in emitted[self._num_taken :]:
            if self._begun:
                matcher.consume_token(token)
            self._begun = self._begun or token == self._grammar.after
        self._num_taken = len(emitted)
        follower = Follower(matcher, self._grammar)
        follower.check()
        return follower if self._begun else None

    def cancel(self) -> None:
        """Do not compile it if that has not begun."""
        self._compiled.cancel()


class Grammars:
    """Compiles the grammars of one model's requests on a thread of its own, slow ones on another.

    That cannot be stopped once it has begun, so a grammar that API servers have not checked is
    compiled in a limited process before it is compiled here.

    Args:
        model: The model; its vocabulary is read for the first grammar.
    """

    def __init__(self, model: object):
        self._model = model if isinstance(model, SpellsTokens) else None
        self._tokenizer: Any = None
        self._lock = threading.Lock()  # of the tokenizer, while it is made
        self._quick = ThreadPoolExecutor(1, thread_name_prefix="izwi-grammar")
        self._slow = ThreadPoolExecutor(1, thread_name_prefix="izwi-slow-grammar")

    def start(self, grammar: Grammar) -> GrammarState:
        """Start to compile the grammar of a new request; return its state.

        Raises:
            InvalidRequest: The model does not support grammars.
        """
        if self._model is None:
            raise InvalidRequest("this model does not support grammars", param=grammar.param)
        pool = self._quick if grammar.is_checked and not grammar.is_slow else self._slow
        compiled = pool.submit(self._compile, self._model, grammar)
        return GrammarState(grammar, compiled)

    def _compile(self, model: SpellsTokens, grammar: Grammar) -> Any:
        if not grammar.is_checked:
            grammar = grammar_check().check_now(grammar)
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = _tokenizer(model)
        matcher = compile_grammar(self._tokenizer, grammar.text)
        follower = Follower(matcher, grammar)
        follower.check()
        matcher.compute_bitmask()  # the first takes longest
        follower.check()
        return matcher

    def close(self) -> None:
        """Stop the threads."""
        self._quick.shutdown(wait=False, cancel_futures=True)
        self._slow.shutdown(wait=False, cancel_futures=True)


def _tokenizer(model: SpellsTokens) -> LLTokenizer:
    wrapper = TokenizerWrapper(_Vocabulary(model))
    return LLTokenizer(wrapper, n_vocab=len(wrapper.tokens), eos_token=list(model.end_ids))


# The ids that a grammar allows next: what gives their mask, so that it is computed while the device
# runs the layers; or, in a batch from elsewhere, the mask, (words,) int32.
Allowed = Follower | Masks


def begun_grammars(draws: Sequence[Row]) -> dict[int, Allowed]:
    """Return what constrains the next token, by index of the draw."""
    return {place: d.allowed for place, d in enumerate(draws) if d.allowed is not None}


def fill_masks(allowed: Sequence[Allowed], vocabulary: int) -> Masks:
    """Return the masks of the next tokens; those that are not known are computed in parallel.

    Args:
        allowed: One per row.
        vocabulary: Number of ids.

    Returns:
        (rows, words) int32; bit b of word w is set if id 32 w + b is allowed.

    Raises:
        InvalidRequest: A row's grammar exceeds a limit, or allows no token.
    """
    masks = np.zeros((len(allowed), -(-vocabulary // 32)), np.int32)
    followers: list[Follower] = []
    for row, one in enumerate(allowed):
        if isinstance(one, Follower):
            followers.append(one)
        else:
            masks[row] = one
    if len(followers) < len(allowed):
        places = [row for row, one in enumerate(allowed) if isinstance(one, Follower)]
        if followers:
            masks[places] = fill_masks(followers, vocabulary)
        return masks
    if len(followers) == 1:
        followers[0].matcher.unsafe_compute_mask_ptr(masks.ctypes.data, masks.nbytes)
    else:
        pairs = [(follower.matcher, row) for row, follower in enumerate(followers)]
        _executor().unsafe_compute_mask_ptr(
            pairs, masks.ctypes.data, masks.shape[1] * masks.itemsize, len(followers)
        )
    for follower, mask in zip(followers, masks, strict=True):
        follower.check()
        if not mask.any():
            raise InvalidRequest(NO_ANSWER, param=follower.grammar.param)
    return masks


_shared: list[LLExecutor] = []


def _executor() -> Any:
    """Return the thread pool that computes masks."""
    if not _shared:
        _shared.append(LLExecutor())
    return _shared[0]
