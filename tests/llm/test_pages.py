"""Pages compared with a plain model of their users, over random histories."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from ptegpu.models.text.pages import Pages

SIZE = 2


class Text:
    """A text: its tokens, and its pages, of which the last may be partly filled."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.pages, self.full = tokens, [], 0

    def key(self, k: int) -> tuple[int, list[int]]:
        return self.pages[k - 1] if k else -1, self.tokens[k * SIZE : (k + 1) * SIZE]


def begin(pages: Pages, tokens: list[int]) -> Text | None:
    """Return a text on registered pages and then new ones, or None if there are too few pages."""
    text = Text(tokens)
    count = len(tokens) // SIZE
    while text.full < count and (page := pages.find(*text.key(text.full))) is not None:
        text.pages.append(page)
        text.full += 1
    if count - text.full > pages.available:
        pages.release(text.pages)
        return None
    text.pages += [pages.allocate() for _ in range(count - text.full)]
    return text


def check(pages: Pages, texts: list[Text]) -> None:
    holders = Counter(page for text in texts for page in text.pages)
    assert [holders[page] for page in range(pages.count)] == pages._references
    assert len(holders) == pages.used == pages.count - pages.available
    free, idle = set(pages._free), set(pages._idle)
    assert len(free) == len(pages._free) and not free & idle and not (free | idle) & set(holders)
    assert pages._registered == {key: page for page, key in pages._keys.items()}
    assert all(before < 0 or before in pages._keys for before, _ in pages._registered)
    for text in texts:
        for k, page in enumerate(text.pages):
            assert holders[page] == 1 or page in pages._keys  # shared pages are registered
            assert page not in pages._keys or pages._keys[page] == (text.key(k)[0], tuple(text.key(k)[1]))


TOKENS = st.sampled_from([[0] * 4, [0] * 6]) | st.lists(st.integers(0, 1), min_size=2, max_size=12)
ACTIONS = st.sampled_from(["begin", "begin", "know", "settle", "settle", "end", "end", "forget"])
STEPS = st.lists(st.tuples(ACTIONS, st.integers(0, 9), TOKENS), max_size=30)


@given(st.integers(1, 8), STEPS)
@settings(max_examples=1000, deadline=None)
def test_no_page_is_lost_or_shared_wrongly(count: int, steps: list[tuple[str, int, list[int]]]) -> None:
    pages, texts = Pages(count, SIZE), []
    for action, number, tokens in steps:
        chosen = texts[number % len(texts)] if texts else None
        if action == "begin":
            begun = begin(pages, tokens)
            texts += [begun] if begun else []
        elif action == "forget":
            pages.forget()
            assert not pages._idle
        elif chosen and action == "end":
            texts.remove(chosen)
            pages.release(chosen.pages)
        elif chosen:
            for k in range(chosen.full, len(chosen.pages)):
                pages.register(chosen.pages[k], *chosen.key(k))
            for k in range(chosen.full, len(chosen.pages) if action == "settle" else 0):
                chosen.pages[k] = pages.deduplicate(chosen.pages[k], *chosen.key(k))
                chosen.full = k + 1
        check(pages, texts)
    for text in texts:
        pages.release(text.pages)
    assert (0, count) == (pages.used, pages.available)
    assert sorted(pages.allocate() for _ in range(count)) == list(range(count))


def test_texts_that_begin_alike_share_pages_also_when_nobody_holds_them() -> None:
    pages = Pages(4, SIZE)
    first = begin(pages, [1, 2, 3, 4])
    assert first is not None
    for k in range(2):
        assert first.pages[k] == pages.deduplicate(first.pages[k], *first.key(k))
    pages.release(first.pages)
    assert (0, 4) == (pages.used, pages.available)
    second = begin(pages, [1, 2, 5, 6])
    assert second is not None
    assert (first.pages[0], 1) == (second.pages[0], second.full)
    assert first.pages[1] == pages.find(first.pages[0], [3, 4])


def test_of_equal_pages_one_is_kept() -> None:
    pages = Pages(4, SIZE)
    first, second = pages.allocate(), pages.allocate()
    assert first == pages.deduplicate(first, -1, [1, 2])
    pages.register(second, -1, [1, 2])
    assert first == pages.deduplicate(second, -1, [1, 2])
    assert (1, 3) == (pages.used, pages.available)


def test_what_was_let_go_first_goes_first_and_from_its_end() -> None:
    pages = Pages(4, SIZE)
    texts = [begin(pages, [0, 0, 1, 1]), begin(pages, [2, 2, 3, 3])]
    for text in texts:
        assert text is not None
        for k in range(2):
            pages.deduplicate(text.pages[k], *text.key(k))
        pages.release(text.pages)
    left, right = (text.pages for text in texts if text)
    assert [left[1], left[0], right[1], right[0]] == [pages.allocate() for _ in range(4)]
