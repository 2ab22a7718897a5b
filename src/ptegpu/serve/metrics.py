"""Metrics for Prometheus: counters and histograms of requests, and the state of the engines."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..printing import shown
from .engine import Engine, Stats

Labels = tuple[tuple[str, str], ...]

REQUEST = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)  # seconds
TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
GAUGES: dict[str, tuple[str, str]] = {  # of Stats
    "queue": ("queue", "waiting requests"),
    "running": ("running", "running requests"),
    "batch": ("batch_rows", "rows of the latest run"),
    "tokens_per_second": ("tokens_per_second", "tokens generated per second, recently"),
    "pages_used": ("cache_pages_used", "pages of the key-value cache in use"),
    "pages_total": ("cache_pages", "pages of the key-value cache"),
    "workers": ("workers", "processes of the model"),
    "down": ("workers_down", "processes of the model that are being restarted"),
}
COUNTERS = {
    "requests": "requests, by endpoint and status; 499 means that the client went away",
    "prompt_tokens": "tokens of prompts",
    "cached_tokens": "tokens of prompts found in the cache",
    "generated_tokens": "tokens generated",
    "proposed_tokens": "tokens that speculative decoding proposed",
    "accepted_tokens": "of these, tokens that were right",
    "restarts": "restarts of workers that ended",
}
COUNTED = {"restarts": "restarts", "proposed_tokens": "proposed", "accepted_tokens": "accepted"}  # by fields of Stats
HISTOGRAMS: dict[str, tuple[Sequence[float], str]] = {
    "request_seconds": (REQUEST, "seconds from a request to the end of its answer"),
    "first_token_seconds": (REQUEST, "seconds from a request to its first token"),
    "token_seconds": (TOKEN, "seconds between tokens of one answer"),
}


class Histogram:
    """Counts of the values up to each of some bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: Labels) -> Iterable[str]:
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts):
            total += count
            yield _line(f"{name}_bucket", (*labels, ("le", bound)), total)
        yield _line(f"{name}_sum", labels, self._sum)
        yield _line(f"{name}_count", labels, total)


class Metrics:
    """All counters and histograms. They belong to one event loop."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[Labels]] = {name: Counter() for name in COUNTERS}
        self._histograms: dict[str, dict[Labels, Histogram]] = {name: {} for name in HISTOGRAMS}

    def count(self, name: str, by: int = 1, **labels: str) -> None:
        self._counts[name][tuple(labels.items())] += by

    def add(self, name: str, value: float, **labels: str) -> None:
        key = tuple(labels.items())
        self._histograms[name].setdefault(key, Histogram(HISTOGRAMS[name][0])).add(value)

    def text(self, engines: Mapping[str, Engine]) -> str:
        """Return all metrics in Prometheus' text format."""
        lines: list[str] = []
        stats: dict[str, Stats] = {name: engine.stats() for name, engine in engines.items()}
        for model, state in stats.items():
            for name, field in COUNTED.items():
                self._counts[name][("model", model),] = getattr(state, field)
        for name, help in COUNTERS.items():
            lines += _head(f"{name}_total", "counter", help)
            lines += [_line(f"ptegpu_{name}_total", labels, n) for labels, n in self._counts[name].items()]
        for field, (name, help) in GAUGES.items():
            lines += _head(name, "gauge", help)
            lines += [_line(f"ptegpu_{name}", (("model", m),), getattr(s, field)) for m, s in stats.items()]
        for name, (_, help) in HISTOGRAMS.items():
            lines += _head(name, "histogram", help)
            for labels, histogram in self._histograms[name].items():
                lines += histogram.lines(f"ptegpu_{name}", labels)
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, help: str) -> list[str]:
    return [f"# HELP ptegpu_{name} {help}", f"# TYPE ptegpu_{name} {kind}"]


def _line(name: str, labels: Labels, value: float) -> str:
    escaped = ((key, shown(text).replace("\\", "\\\\").replace('"', '\\"')) for key, text in labels)
    pairs = ",".join(f'{key}="{text}"' for key, text in escaped)
    return f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}"
