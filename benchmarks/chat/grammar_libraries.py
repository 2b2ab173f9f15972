"""Compare grammar libraries: time to compile a schema, and time per step for 64 rows.

    python -m benchmarks.chat.grammar_libraries

Prints JSON. Needs xgrammar and llguidance. The vocabulary has as many tokens as Qwen3's: all bytes,
and pieces of the text of the installed packages. Every row samples allowed tokens at random, so
that rows are at different positions of the schema.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sysconfig
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY, EOS, ROWS, STEPS = 151_936, 151_645, 64, 100
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["friend", "family", "colleague"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string"}},
            "required": ["street"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "object": {"type": "object"},
    "person": PERSON,
    "100 properties": {
        "type": "object",
        "properties": {f"field_{n}": {"type": ["string", "null"]} for n in range(100)},
        "required": [f"field_{n}" for n in range(100)],
        "additionalProperties": False,
    },
}


def pieces() -> list[bytes]:
    """Return as many tokens as there are ids below EOS, most frequent words first."""
    counts: Counter[str] = Counter()
    for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py"))[:6000]:
        text = path.read_text(encoding="utf-8", errors="ignore")
        counts.update(re.findall(r" ?[A-Za-z]+| ?[^\sA-Za-z]{1,4}|\s+", text))
    words = [word.encode() for word, _ in counts.most_common(3 * VOCABULARY)]
    tokens = [bytes([byte]) for byte in range(256)]
    tokens = list(dict.fromkeys(tokens + [word for word in words if len(word) <= 24]))
    at = 0
    while len(tokens) < EOS:  # if there is too little text
        tokens.append(b" w%06d" % at)
        at += 1
    return tokens[:EOS]


class LLGuidance:
    """llguidance's matchers."""

    def __init__(self, tokens: list[bytes]):
        from llguidance import LLExecutor, LLTokenizer, TokenizerWrapper

        class Words:
            eos_token_id, bos_token_id = EOS, None
            special_token_ids = (EOS,)

            def __init__(self) -> None:
                rest = [b""] * (VOCABULARY - EOS - 1)
                self.tokens = [*tokens, b"<|im_end|>", *rest]

            def __call__(self, text: bytes) -> list[int]:
                return list(text)

        began = time.perf_counter()
        self._tokenizer = LLTokenizer(TokenizerWrapper(Words()), n_vocab=VOCABULARY)
        self.tokenizer_s = time.perf_counter() - began
        self._executor = LLExecutor()

    def start(self, schema: dict[str, Any]) -> Any:
        """Compile a schema."""
        from llguidance import LLMatcher

        grammar = LLMatcher.grammar_from_json_schema(
            json.dumps(schema), overrides={"whitespace_flexible": False}
        )
        return LLMatcher(self._tokenizer, grammar)

    def copies(self, matcher: Any) -> list[Any]:
        """Create a matcher for each row."""
        return [matcher.deep_copy() for _ in range(ROWS)]

    def fill(self, matchers: list[Any], mask: np.ndarray) -> None:
        """Compute all masks."""
        from llguidance.numpy import fill_next_token_bitmask_par

        pairs = [(matcher, row) for row, matcher in enumerate(matchers)]
        fill_next_token_bitmask_par(self._executor, pairs, mask)

    def accept_token(self, matcher: Any, token: int) -> bool:
        """Accept a token; return whether it was allowed."""
        return bool(matcher.consume_token(token))


class XGrammar:
    """xgrammar's matchers."""

    def __init__(self, tokens: list[bytes]):
        import xgrammar

        began = time.perf_counter()
        info = xgrammar.TokenizerInfo(
            [*tokens, b"<|im_end|>"], vocab_size=VOCABULARY, stop_token_ids=[EOS]
        )
        self.tokenizer_s = time.perf_counter() - began
        self._xgrammar, self._info = xgrammar, info

    def start(self, schema: dict[str, Any]) -> Any:
        """Compile a schema."""
        compiler = self._xgrammar.GrammarCompiler(self._info, max_threads=2, cache_enabled=False)
        return compiler.compile_json_schema(json.dumps(schema), any_whitespace=False)

    def copies(self, compiled: Any) -> list[Any]:
        """Create a matcher for each row."""
        return [self._xgrammar.GrammarMatcher(compiled) for _ in range(ROWS)]

    def fill(self, matchers: list[Any], mask: np.ndarray) -> None:
        """Compute all masks."""
        import torch

        words = torch.from_numpy(mask)
        for row, matcher in enumerate(matchers):
            matcher.fill_next_token_bitmask(words, row)

    def accept_token(self, matcher: Any, token: int) -> bool:
        """Accept a token; return whether it was allowed."""
        return bool(matcher.accept_token(token))


def measure(library: Any, schema: dict[str, Any]) -> dict[str, float]:
    """Return milliseconds: to start, and per step for all rows (median and worst)."""
    starts, steps = [], []
    for _ in range(3):
        began = time.perf_counter()
        started = library.start(schema)
        starts.append(time.perf_counter() - began)
    chance = random.Random(0)
    matchers = library.copies(started)
    mask = np.zeros((ROWS, -(-VOCABULARY // 32)), np.int32)
    for _ in range(STEPS):
        began = time.perf_counter()
        library.fill(matchers, mask)
        filled = time.perf_counter() - began
        bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
        drawn = [int(chance.choice(np.flatnonzero(row))) if row.any() else EOS for row in bits]
        began = time.perf_counter()
        for row, token in enumerate(drawn):
            if token == EOS or not library.accept_token(matchers[row], token):
                matchers[row] = library.copies(started)[0]
        steps.append(filled + time.perf_counter() - began)
    steps.sort()
    return {
        "start_ms": round(min(starts) * 1e3, 2),
        "first_start_ms": round(starts[0] * 1e3, 2),
        "step_ms": round(steps[len(steps) // 2] * 1e3, 2),
        "worst_step_ms": round(steps[-1] * 1e3, 2),
    }


def main() -> None:
    """Measure both."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    tokens = pieces()
    report: dict[str, Any] = {"vocabulary": VOCABULARY, "rows": ROWS}
    for kind in (LLGuidance, XGrammar):
        library: Any = kind(tokens)
        figures = {name: measure(library, schema) for name, schema in SCHEMAS.items()}
        report[kind.__name__] = {"tokenizer_s": round(library.tokenizer_s, 3)} | figures
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
