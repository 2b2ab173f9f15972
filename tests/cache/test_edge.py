"""Following keys along the edges of the prefix tree, and the page where prefixes part."""

from __future__ import annotations

from izwi.cache.edge import ABSENT, Edge, follow, nearest

SIZE = 2


def edges() -> tuple[Edge, Edge, Edge]:
    """The root, a run of three pages, and one of two behind it."""
    root = Edge(None, 0, [], [], SIZE)
    first = Edge(root, 0, [1, 2, 3, 4, 5, 6], [10, 11, 12], SIZE)
    second = Edge(first, 3, [7, 8, 9, 9], [13, 14], SIZE)
    root.attach(first)
    first.attach(second)
    return root, first, second


def test_keys_are_followed_from_the_midst_of_an_edge() -> None:
    """As for a sequence that has the first pages of a run: the rest is compared, not the start."""
    root, first, second = edges()
    keys = [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]
    assert follow(root, 0, keys, 5) == (second, 5)
    for known in range(1, 4):
        assert follow(first, known, keys, 5) == (second, 5)
        assert follow(first, known, keys, 3) == (first, 3)
    assert follow(first, 1, keys, 2) == (first, 2)
    assert follow(second, 4, keys, 5) == (second, 5)
    other = [1, 2, 3, 4, 0, 6, 7, 8]
    assert follow(first, 1, other, 4) == (first, 2)
    assert follow(first, 3, [*keys[:6], 7, 0], 4) == (first, 3)


def test_the_nearest_page_is_on_either_side_and_there() -> None:
    root = Edge(None, 0, [], [], 3)
    assert nearest(root, [1, 1, 1]) == (None, 0)
    for page, head in enumerate(([1, 1, 1], [1, 5, 1], [1, 5, 3], [2, 0, 0]), 20):
        root.attach(Edge(root, 0, head, [page], 3))
    assert nearest(root, [1, 5, 2]) in ((21, 2), (22, 2))
    assert nearest(root, [1, 1, 7]) == (20, 2)
    assert nearest(root, [0, 0, 0]) == (None, 0)
    root.children[0].pages[0] = ABSENT
    assert nearest(root, [1, 1, 7])[1] == 1, "one beside it, which shares less"
    for child in root.children:
        child.pages[0] = ABSENT
    assert nearest(root, [1, 5, 2]) == (None, 0)
