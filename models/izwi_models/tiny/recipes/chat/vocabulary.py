"""Everyday words, for spelling and comparing."""

from __future__ import annotations

from pathlib import Path

NAMES = (
    "Anna",
    "Peter",
    "Maria",
    "John",
    "Sarah",
    "David",
    "Emma",
    "Michael",
    "Laura",
    "Thomas",
    "Julia",
    "Robert",
    "Alice",
    "Daniel",
    "Kate",
    "Henry",
    "Lucy",
    "George",
    "Nina",
    "Paul",
    "Mark",
    "Helen",
    "James",
    "Mary",
    "Tom",
    "Jane",
    "Sam",
    "Ben",
    "Olga",
    "Ivan",
    "Fatima",
    "Omar",
    "Yuki",
    "Chen",
    "Priya",
    "Carlos",
    "Sofia",
    "Ahmed",
    "Ingrid",
    "Pierre",
)
WORDS = tuple(Path(__file__).with_name("words.txt").read_text().split())
