"""A counter of odd prose: sentences that an English reader must read twice, and names that carry no noun.

    python -m tools.words [FOLDER...] [--list]

It reads docstrings, comments, error messages and help texts of Python files, comments of JavaScript and the prose of
Markdown. A match is a place to read aloud, not a verdict; `make lint` fails where a folder has more than LIMITS allows.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

OPENINGS = "What|That|Of|So|Whose|Which|Where|Whether|How|As|The same|All of|None of|One of|Those|Such|Behind|Beside"
OPENING = re.compile(rf"({OPENINGS})\b")
PHRASES = [
    re.compile(pattern)
    for pattern in (
        r"\b(is|are|was|be) none\b(?! of)",
        r"\b(of|from|for|to|by) (those|that|what|all|such) (that|which|is|are|was|were)\b",
        r"\bso (many|much|few|long)\b(?! that| as)",
        r"\b(of|with|by|for|in|from|to|than|as|and|or) what (is|are|was|were|has|have|it|they|comes|stands|follows)\b",
        r"\b(is|are|was) no (?!longer|more than|less|such|way|need|problem|reason|doubt|different)[a-z]+\b",
        r",? too[.:;]",
        r"\b(one behind the other|behind each other|stands? (behind|before|beside)|lies? (behind|beside|over))\b",
        r"\bso that (it|they|none|nobody|nothing)\b",
        r"\bone (\w+ )?(less|more)[.;:]",
        r"\b(nobody|whoever|who reaches|who asks)\b",
    )
]
NO_NOUN = re.compile(
    "found|given|made|told|asked|said|how|one|many|few|whole|alone|aside|together|kept|taken|wanted|known|seen|sees"
    "|held|says|gives|takes"
)


class Limit(NamedTuple):
    marks: float  # per 1,000 lines
    names: float  # per 1,000 lines
    openings: float  # percent of the docstrings


LIMITS = {
    "src/ptegpu": Limit(1.5, 0.5, 1.5),
    "tests": Limit(2, 1, 100),
    "tools": Limit(2, 1, 100),
    "benchmarks": Limit(2, 1, 100),
    "docs": Limit(2, 1, 100),
    "web": Limit(2, 1, 100),
}


@dataclass
class Count:
    """The matches in a folder, as `file:line: text`."""

    lines: int = 0
    docstrings: int = 0
    openings: list[str] = field(default_factory=list)
    phrases: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def rates(self) -> Limit:
        thousands, marks = self.lines / 1000 or 1, len(self.openings) + len(self.phrases)
        percent = 100 * len(self.openings) / (self.docstrings or 1)
        return Limit(marks / thousands, len(self.names) / thousands, percent)


class Prose(NamedTuple):
    line: int
    text: str
    is_docstring: bool = False


def text_of(node: ast.expr) -> str:
    """Return the text of a string expression, with X for each value of an f-string; empty for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "X" for part in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return ""


def python_prose(tree: ast.Module, source: str) -> Iterator[Prose]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node):
                yield Prose(getattr(node, "lineno", 1), docstring, True)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from (Prose(node.lineno, text_of(argument)) for argument in node.exc.args)
        elif isinstance(node, ast.keyword) and node.arg == "help":
            yield Prose(node.value.lineno, text_of(node.value))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# type", "#!", "# noqa")):
            yield Prose(token.start[0], token.string.lstrip("# "))


def names_without_noun(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and NO_NOUN.fullmatch(node.id.lstrip("_")):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg) and NO_NOUN.fullmatch(node.arg.lstrip("_")):
            yield node.lineno, node.arg


def javascript_prose(source: str) -> Iterator[Prose]:
    for comment in re.finditer(r"(?<![:\"'`])//\s*(.+)|/\*\*?((?s:.*?))\*/", source):
        yield Prose(source.count("\n", 0, comment.start()) + 1, comment[1] or comment[2] or "")


def markdown_prose(source: str) -> Iterator[Prose]:
    prose = re.sub(r"```.*?```", lambda fence: "\n" * fence[0].count("\n"), source, flags=re.DOTALL)
    for paragraph in re.finditer(r"\S.*?(?=\n\s*\n|\Z)", prose, re.DOTALL):
        yield Prose(prose.count("\n", 0, paragraph.start()) + 1, paragraph[0])


def read(path: Path, count: Count) -> None:
    """Add the matches of a file."""
    source = path.read_text("utf-8")
    count.lines += source.count("\n")
    if path.suffix == ".py":
        tree = ast.parse(source)
        passages = list(python_prose(tree, source))
        count.names += [f"{path}:{line}: {name}" for line, name in names_without_noun(tree)]
    else:
        passages = list(markdown_prose(source) if path.suffix == ".md" else javascript_prose(source))
    for line, text, is_docstring in passages:
        count.docstrings += is_docstring
        if is_docstring and OPENING.match(text.strip()):
            count.openings.append(f"{path}:{line}: {text.strip().splitlines()[0]}")
        for phrase in PHRASES:
            for match in phrase.finditer(text):
                start = max(text.rfind("\n", 0, match.start()), text.rfind(". ", 0, match.start())) + 1
                count.phrases.append(f"{path}:{line}: {' '.join(text[start : start + 120].split())}")


def count_folder(folder: Path) -> Count:
    count = Count()
    for path in sorted([folder] if folder.is_file() else folder.rglob("*")):
        if path.suffix in (".py", ".js", ".mjs", ".md") and path.is_file() and "node_modules" not in path.parts:
            read(path, count)
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=[str(ROOT / name) for name in LIMITS], metavar="FOLDER")
    parser.add_argument("--list", action="store_true", help="print every match")
    options = parser.parse_args()
    failed = False
    for name in options.folders:
        folder = Path(name).resolve()
        count = count_folder(folder)
        rates = count.rates()
        label = folder.relative_to(ROOT).as_posix() if folder.is_relative_to(ROOT) else str(folder)
        limit = LIMITS.get(label)
        exceeded = limit is not None and any(rate > most for rate, most in zip(rates, limit))
        failed |= exceeded
        print(
            f"{label:12} {rates.marks:5.1f} marks and {rates.names:5.1f} names per 1,000 lines, "
            f"{rates.openings:5.1f} % of docstrings open oddly{'  more than allowed' if exceeded else ''}"
        )
        if options.list:
            print("\n".join([*count.openings, *count.phrases, *count.names]))
    if failed:
        print("list the places with: python -m tools.words FOLDER --list", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
