"""The result of a command: a `CommandReport`, printed as lines and tables or, with --json, as its record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .console import explain, note, print_json, say, show_table

Piece: TypeAlias = "str | tuple[str, str]"  # text, or text and its style


@dataclass(frozen=True, slots=True)
class TextLine:
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A styled head and a sentence, which a terminal breaks between words."""

    text: str
    head: str
    style: str
    indent: int  # of its second and later lines


@dataclass(frozen=True, slots=True)
class TextTable:
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    right: Sequence[int]  # columns of numbers
    optional: Sequence[int]  # columns to leave out where the table is too wide, in this order


@dataclass(slots=True)
class CommandReport:
    """The result of a command: a record for programs, and the same as text for people."""

    record: dict[str, Any]
    exit_code: int = 0
    blocks: list[TextLine | Paragraph | TextTable] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # on stderr, after the blocks

    def line(self, *pieces: Piece) -> None:
        self.blocks.append(TextLine(pieces))

    def paragraph(self, text: str, head: str = "", style: str = "", indent: int = 0) -> None:
        self.blocks.append(Paragraph(text, head, style, indent))

    def entry(self, name: str, text: str | None) -> None:
        """Add a name and its value, indented; nothing if the value is None."""
        if text is not None:
            self.paragraph(text, f"  {name:<12}", indent=14)

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        right: Sequence[int] = (),
        optional: Sequence[int] = (),
    ) -> None:
        self.blocks.append(TextTable(columns, list(rows), right, optional))

    def print(self, as_json: bool) -> None:
        """Print the record as JSON, or else the text."""
        if as_json:
            print_json(self.record)
            return
        for block in self.blocks:
            match block:
                case TextLine(pieces):
                    say(*pieces)
                case Paragraph(text, head, style, indent):
                    explain(text, head, style, indent)
                case TextTable(columns, rows, right, optional):
                    show_table(columns, rows, right, optional)
        for remark in self.remarks:
            note(remark, style="dim")
