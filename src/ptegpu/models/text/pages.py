"""The pages of a cache: how many hold each, and which hold the beginning of a text that is known already.

A page has the keys and values of `size` tokens. A full page is known by its tokens and by the page before it, so texts
that begin alike hold the same pages, which nobody writes again. Pages that nobody holds stay known until their memory
is needed; the one that was let go first goes first. A text holds all its pages and lets them go from the last to the
first, so no page goes before those that follow it: a page that is known always follows one that is known, too.
"""

from __future__ import annotations

from collections.abc import Sequence

Key = tuple[int, tuple[int, ...]]  # the page before, or -1, and the tokens


class Pages:
    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._free = list(range(count))[::-1]
        self._holders = [0] * count
        self._known: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}  # of the pages that are known
        self._idle: dict[int, None] = {}  # known and held by nobody, the first let go first

    @property
    def available(self) -> int:
        """Pages that can be taken."""
        return len(self._free) + len(self._idle)

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.count - self.available

    def take(self) -> int:
        """A page of one's own, where one is available."""
        if self._free:
            page = self._free.pop()
        else:
            page = next(iter(self._idle))
            del self._idle[page], self._known[self._keys.pop(page)]
        self._holders[page] = 1
        return page

    def find(self, before: int, tokens: Sequence[int]) -> int | None:
        """The page with these tokens after that page, which is held from now on; None if there is none."""
        page = self._known.get((before, tuple(tokens)))
        if page is not None:
            self._hold(page)
        return page

    def know(self, page: int, before: int, tokens: Sequence[int]) -> None:
        """A page of one's own gets full: others find it, unless they find an equal one, or not even the one before."""
        key = (before, tuple(tokens))
        if key not in self._known and (before < 0 or before in self._keys):
            self._known[key], self._keys[page] = page, key

    def settle(self, page: int, before: int, tokens: Sequence[int]) -> int:
        """A full page that is known; of equal ones the first to be known, in place of one's own."""
        self.know(page, before, tokens)
        if page not in self._keys:
            own, page = page, self._known[before, tuple(tokens)]
            self._hold(page)
            self.release([own])
        return page

    def release(self, pages: Sequence[int]) -> None:
        """One holder less of each of a text's pages."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if not self._holders[page]:
                if page in self._keys:
                    self._idle[page] = None
                else:
                    self._free.append(page)

    def forget(self) -> None:
        """No page that is idle is known any more."""
        for page in self._idle:
            del self._known[self._keys.pop(page)]
        self._free += self._idle
        self._idle.clear()

    def _hold(self, page: int) -> None:
        self._idle.pop(page, None)
        self._holders[page] += 1
