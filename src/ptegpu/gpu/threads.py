"""Threads that stay until the process ends.

One that ends runs code of Python's own in whoever lets go of it last, and an interrupt that arrives there is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_ASIDE = 8  # pieces of work


@cache
def pool(name: str, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, f"ptegpu-{name}")


@contextmanager
def aside(work: Callable[[], R]) -> Iterator[Callable[[], R]]:
    """A block beside which `work` is done; what it is given waits for the result. It ends when both are done."""
    future = pool("aside", _ASIDE).submit(work)
    try:
        yield future.result
    finally:
        wait([future])


def in_turn(threads: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """The results, in the order of the items. Once one fails, or nobody wants more, no further item is begun."""
    futures = [threads.submit(work, item) for item in items]
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
