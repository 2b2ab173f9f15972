"""How many streams of which models does a card hold? The table of docs/operations.md.

The memory plan of `izwi serve`, before anything is loaded, for published sizes (configurations;
no weights) in bfloat16. A card is given by its size, of which the driver's context is taken off.

    python -m benchmarks.serving.sizing --write
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.serving.device_memory import folder_of_case
from izwi.backends.memory_plan import DeviceMemory, MemoryPlan
from izwi.backends.torch.backend import TorchBackend, torch_backend
from izwi.config import EngineConfig
from izwi.errors import DoesNotFit
from izwi.runner.planning import plan_folders

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
BEGIN, END = "<!-- sizing -->\n", "<!-- end of sizing -->\n"
CARDS_GIB = (16, 24, 48, 80)
_GIB = 1 << 30
# What the driver and its libraries take of an H100 before anything is planned.
_CONTEXT_BYTES = 600 << 20
CASES: Mapping[str, tuple[str, ...]] = {
    "Qwen3-TTS 0.6B": ("tts-0.6b",),
    "Qwen3-TTS 1.7B": ("tts-1.7b",),
    "Qwen3-ASR 0.6B": ("asr-0.6b",),
    "Qwen3-ASR 1.7B": ("asr-1.7b",),
    "Qwen3 chat 0.6B": ("chat-0.6B",),
    "Qwen3 chat 8B": ("chat-8B",),
    "live: ASR, chat, TTS 0.6B": ("asr-0.6b", "chat-0.6B", "tts-0.6b"),
    "live: ASR 1.7B, chat 8B, TTS 1.7B": ("asr-1.7b", "chat-8B", "tts-1.7b"),
}
WEIGHTS = ("auto", "int8")


class Card(TorchBackend):
    """A backend that says it has a card's memory; nothing is loaded into it."""

    free_bytes = 0

    def memory(self) -> DeviceMemory:
        """Return the memory of the card."""
        return DeviceMemory(self.free_bytes + _CONTEXT_BYTES, self.free_bytes)


def card_of(gib: float) -> Card:
    """Return a card of this size."""
    card = Card(torch_backend("cpu", "bfloat16").ops)
    card.free_bytes = round(gib * _GIB) - _CONTEXT_BYTES
    return card


def plan(names: tuple[str, ...], gib: float, weights: str) -> MemoryPlan | None:
    """Return the plan for models on a card, or None if they do not fit."""
    with tempfile.TemporaryDirectory() as parent:
        folders = {name: folder_of_case(name, Path(parent)) for name in names}
        try:
            return plan_folders(folders, card_of(gib), EngineConfig(), weights)
        except DoesNotFit:
            return None


def cell(planned: MemoryPlan | None) -> str:
    """Return what the table says of a plan."""
    if planned is None:
        return "no"
    pages = sum(model.page_bytes for model in planned.models) / _GIB
    return f"{planned.num_streams}, {pages:.1f} GiB"


def rows() -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| models | weights | " + " | ".join(f"{gib} GiB" for gib in CARDS_GIB) + " |"
    yield "|---|---|" + "---|" * len(CARDS_GIB)
    for title, names in CASES.items():
        for weights in WEIGHTS:
            cells = [cell(plan(names, gib, weights)) for gib in CARDS_GIB]
            kind = "bfloat16" if weights == "auto" else weights
            yield f"| {title} | {kind} | " + " | ".join(cells) + " |"


def table() -> str:
    """Return the table as Markdown."""
    return "\n".join(rows()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put it into docs/operations.md")
    made = table()
    print(made, end="")
    if parser.parse_args().write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(before + BEGIN + made + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
