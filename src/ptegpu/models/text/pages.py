"""The pages of a key-value cache: reference counts, and which pages hold the beginnings of earlier texts.

A page holds the keys and values of `size` tokens. A full page is registered under its tokens and the page before it, so
texts that begin alike share pages, which are never written again. A page without references stays registered until its
memory is needed; the one released first is reused first. A text references all its pages and releases them from the
last to the first, so no page is reused before those that follow it: a registered page always follows a registered page.
"""

from __future__ import annotations

from collections.abc import Sequence

Key = tuple[int, tuple[int, ...]]  # the page before, or -1, and the tokens


class Pages:
    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._free = list(range(count))[::-1]
        self._references = [0] * count
        self._registered: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}  # of registered pages
        self._idle: dict[int, None] = {}  # registered, without references; the first released comes first

    @property
    def available(self) -> int:
        return len(self._free) + len(self._idle)

    @property
    def used(self) -> int:
        return self.count - self.available

    def allocate(self) -> int:
        """Return a page with one reference; there must be one available."""
        if self._free:
            page = self._free.pop()
        else:
            page = next(iter(self._idle))
            del self._idle[page], self._registered[self._keys.pop(page)]
        self._references[page] = 1
        return page

    def find(self, before: int, tokens: Sequence[int]) -> int | None:
        """Return the registered page with these tokens after that page, with one more reference; None if missing."""
        page = self._registered.get((before, tuple(tokens)))
        if page is not None:
            self._reference(page)
        return page

    def register(self, page: int, before: int, tokens: Sequence[int]) -> None:
        """Register a full page for reuse, unless an equal one is registered or the page before it is not."""
        key = (before, tuple(tokens))
        if key not in self._registered and (before < 0 or before in self._keys):
            self._registered[key], self._keys[page] = page, key

    def deduplicate(self, page: int, before: int, tokens: Sequence[int]) -> int:
        """Register a full page; if an equal page was registered before, release this one and return that one."""
        self.register(page, before, tokens)
        if page not in self._keys:
            duplicate, page = page, self._registered[before, tuple(tokens)]
            self._reference(page)
            self.release([duplicate])
        return page

    def release(self, pages: Sequence[int]) -> None:
        """Drop one reference to each of a text's pages."""
        for page in reversed(pages):
            self._references[page] -= 1
            if not self._references[page]:
                if page in self._keys:
                    self._idle[page] = None
                else:
                    self._free.append(page)

    def forget(self) -> None:
        """Unregister all pages without references."""
        for page in self._idle:
            del self._registered[self._keys.pop(page)]
        self._free += self._idle
        self._idle.clear()

    def _reference(self, page: int) -> None:
        self._idle.pop(page, None)
        self._references[page] += 1
