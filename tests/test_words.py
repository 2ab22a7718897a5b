"""The counter of odd prose: it finds each kind of match, and nothing in plain prose."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.words import Count, read


def counted(path: Path, source: str) -> tuple[int, int, int]:
    path.write_text(source, "utf-8")
    count = Count()
    read(path, count)
    return len(count.openings), len(count.phrases), len(count.names)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('def f():\n    """What it returns."""\n', (1, 0, 0)),
        ('def f():\n    """Return one less."""\n', (0, 1, 0)),
        ("x = 1  # nobody reads this\n", (0, 1, 0)),
        ('def f(x):\n    raise ValueError(f"{x} is no number")\n', (0, 1, 0)),
        ('add(help="Show all of those that are left.")\n', (0, 1, 0)),
        ("found = 1\n_kept = 2\n\n\ndef f(told):\n    pass\n", (0, 0, 3)),
        ('def f(matches):\n    """Return the number of matches."""\n    # Offsets in bytes.\n', (0, 0, 0)),
    ],
)
def test_python(tmp_path: Path, source: str, expected: tuple[int, int, int]) -> None:
    assert expected == counted(tmp_path / "x.py", source)


def test_javascript(tmp_path: Path) -> None:
    source = 'fetch("https://nobody.example");\n// nobody\n/** Read by\n * whoever asks. */\n'
    assert (0, 2, 0) == counted(tmp_path / "x.mjs", source)


def test_markdown_without_its_code(tmp_path: Path) -> None:
    assert (0, 1, 0) == counted(tmp_path / "x.md", "It is none.\n\n```\nIt is none.\n```\n")
