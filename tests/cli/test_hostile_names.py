"""Files whose every name is an attack on the terminal, the log or the page that it is shown in."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Invoke
from tests.format.build import Table, Tables, Vector, i8, i32, ids, program, table, text, u32, union

import ptegpu
from ptegpu.cli.generate import write
from ptegpu.printing import LONGEST

NAME = (
    "\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202eolleh\u2066\x00\r\nerror: all good\n\u2028error: all good\u2028"
    "[bold red]x[/bold red]{title}{0}%s<script>alert(1)</script>\"'&:smile:"
)
LONG = NAME + "A" * 100_000 + NAME
FILE = "\x1b[31m\u202e[bold]<script>alert(1)\udcff\nerror: all good.pte"


ROOT = Path(__file__).resolve().parent.parent.parent


def tensor(key: str | None = None) -> Table:
    more = {} if key is None else {9: table(None, text(key), i8(1))}
    return union(5, Table({0: i8(6), 2: Vector("i", [4]), 3: Vector("B", [0]), **more}))


def tree(names: list[str]) -> str:
    leaf = {"type": None, "context": None, "children_spec": []}
    spec = {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [leaf] * len(names)}
    both = {"type": "builtins.tuple", "context": "null", "children_spec": [spec]}
    return json.dumps(
        [
            1,
            {
                "type": "builtins.tuple",
                "context": "null",
                "children_spec": [both, spec | {"context": "[]", "children_spec": []}],
            },
        ]
    )


def made(
    method: str = NAME,
    operator: str = "aten::relu",
    keys: str = NAME,
    values: tuple[Table, ...] = (),
    backend: str = "",
) -> bytes:
    """A program of one method, an operator and, perhaps, a delegate."""
    inputs = list(values) or [tensor(), tensor()]
    call = union(2, table(None, ids(0, 1))) if backend else union(1, table(i32(0), ids(0, 1, 1)))
    plan = {
        0: text(method),
        1: table(text(tree([keys]))),
        2: Tables(inputs),
        3: ids(0),
        4: ids(1),
        5: Tables([table(None, None, Tables([call]))]),
        6: Tables([table(text(operator), text("out"))]),
        8: Vector("q", [0, 64]),
    }
    if backend:
        plan[7] = Tables([table(text(backend), table(i8(0), u32(0)), Tables([table(text(NAME), Vector("B", [1]))]))])
    return program(Table({1: Tables([Table(plan)]), 3: Tables([table(Vector("B", [0] * 64))])}))


FILES = {
    "runs": made(),
    "long": made(LONG, keys=LONG),
    "operator": made(operator=f"aten::{LONG}"),
    "backend": made(backend=LONG),
    "string": made("forward", values=(union(6, table(text(LONG))), tensor())),
    "key": made(values=(tensor(LONG), tensor())),
}


def check(shown: str) -> None:
    """Nothing but lines of a sane length, of which none pretends to be ours."""
    for line in shown.split("\n"):
        assert line.isprintable(), line
        assert len(line) <= 3 * LONGEST
        assert not line.startswith("error: all good"), line


@pytest.mark.parametrize("kind", FILES)
def test_no_command_prints_a_name_as_it_is(kind: str, tmp_path: Path, invoke: Invoke) -> None:
    file, out = tmp_path / FILE, tmp_path / "out"
    file.write_bytes(FILES[kind])
    runs = kind in ("runs", "long")
    for command, works in (
        (("inspect", file), kind != "string"),
        (("inspect", file, "--method", f"{NAME}?"), False),
        (("run", file), runs),
        (("run", file, "--method", "nothing"), False),
        (("compile", file, "-o", out), runs),
        (("inspect", out), runs),
        (("web", file, "-o", tmp_path / "site", "--no-check", "--variant", "generic"), runs),
        (("profile", file, "--method", "nothing"), False),
        (("generate", file, "x"), False),
        (("chat", file), False),
        (("evaluate", file, file), False),
        (("serve", file), False),
        (("export", "llm", "x", "-o", file / "y"), False),
    ):
        ended = invoke(*command)
        assert (ended.code == 0) is works, (command, ended)
        check(ended.out)
        check(ended.err)
        assert len(ended.err) <= LONGEST + 200, command
        assert works or ended.err.startswith("error: "), ended


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_pictures_and_pages_show_names_as_text(suffix: str, tmp_path: Path, invoke: Invoke) -> None:
    file, picture = tmp_path / FILE, tmp_path / f"picture.{suffix}"
    for content in (FILES["long"], FILES["operator"]):
        file.write_bytes(content)
        assert 0 == invoke("inspect", file, "--graph", picture).code
        drawn = picture.read_text("utf-8")
        check("\n".join(line for line in drawn.split("\n") if "alert" in line)[:LONGEST])
        assert "<script>alert" not in drawn and "&lt;script&gt;alert" in drawn
        assert all(c.isprintable() or c == "\n" for c in drawn)
        assert len(drawn) < 50_000


def test_a_site_shows_names_as_text(tmp_path: Path, invoke: Invoke) -> None:
    file, site = tmp_path / FILE, tmp_path / "site"
    file.write_bytes(FILES["runs"])
    assert 0 == invoke("web", file, "-o", site, "--no-check", "--variant", "generic").code
    page = (site / "index.html").read_text("utf-8")
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page and "\x1b" not in page and "\u202e" not in page
    config = json.loads((site / "site.json").read_bytes())
    assert config["title"].isprintable() and config["model"]["file"].isprintable()
    assert NAME == config["method"]  # by which the page asks for it


def test_what_is_no_file_is_named_at_once(tmp_path: Path, mlp: Path, invoke: Invoke) -> None:
    pipe = tmp_path / "pipe.pte"
    os.mkfifo(pipe)
    os.mkfifo(tmp_path / "x.npy")
    tales = Path(ptegpu.__file__).parent / "demo" / "tales.pte"
    digits = tales.with_name("digits.pte")
    for other in (pipe, "/dev/zero", tmp_path):
        for command in (
            *((name, other) for name in ("inspect", "run", "profile", "web", "chat", "serve")),
            ("generate", other, "x"),
            ("evaluate", tales, other),
            ("compile", other, "-o", tmp_path / "out"),
            ("run", mlp, "--data", other),
            ("serve", tales, "--keys", other),
            ("web", digits, "-o", tmp_path / "site", "--labels", other),
            ("web", tales, "-o", tmp_path / "site", "--tokenizer", other),
        ):
            ended = invoke(*command)
            assert 1 == ended.code and 1 == ended.err.count("\n"), (command, ended)
            assert ended.err.startswith("error: "), ended
    ended = invoke("run", mlp, "--input", tmp_path / "x.npy")
    assert (1, f"error: {tmp_path / 'x.npy'} is not a regular file\n") == (ended.code, ended.err)


def test_json_has_the_names_themselves(tmp_path: Path, invoke: Invoke) -> None:
    file = tmp_path / FILE
    file.write_bytes(FILES["runs"])
    ended = invoke("inspect", file, "--json")
    check(ended.out)
    assert NAME == ended.json()["methods"][0]["name"]


@pytest.mark.parametrize(
    "line", [[NAME], ["run", f"--{NAME}"], ["run", "--device", NAME], ["inspect", "x", "--graph", NAME]]
)
def test_a_command_line_is_shown_safely(line: list[str], invoke: Invoke) -> None:
    ended = invoke(*line)
    assert 2 == ended.code and ended.err.startswith("error: ")
    check(ended.err)


def test_what_a_model_writes_does_not_steer_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = ("a\tb\r\n", "\x1b]0;PWNED\x07", "\x9b2J\r", "\u202e🙂\u200d\n")
    for piece in pieces:
        write(piece)
    assert "".join(pieces) == capsys.readouterr().out  # a pipe, or a file
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for piece in pieces:
        write(piece)
    assert "a\tb\n" + r"\x1b]0;PWNED\x07\x9b2J\r\u202e" + "🙂\u200d\n" == capsys.readouterr().out


def test_pages_show_text_as_text() -> None:
    sources = [path for folder in ("src", "pages") for path in sorted((ROOT / "web" / folder).glob("*.js"))]
    assert len(sources) > 10
    for path in sources:
        matches = re.findall(
            r"(?:inner|outer)HTML|insertAdjacentHTML|document\.write|srcdoc|createContextual", path.read_text()
        )
        assert [] == matches, path


def test_what_python_shows_of_a_program_is_shown_so_too() -> None:
    with ptegpu.load(FILES["long"]) as program:
        method = program.method(LONG)
        for text in (repr(program), repr(method), *map(repr, method.inputs)):
            check(text)
        with pytest.raises(KeyError) as raised:
            program.method("nothing")
        check(str(raised.value))
