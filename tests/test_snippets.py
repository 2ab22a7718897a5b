"""The snippets of the README and the documentation: commands parse, and Python runs on small models.

Every `ptegpu …` line of a shell block must be an accepted command line. The Python blocks of a page run in order, in
one namespace and in a folder with the files that they name, which PREPARED makes. NOT_RUN lists the other pages.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
import typer

import ptegpu
from ptegpu.cli.app import app

torch = pytest.importorskip("torch")

from tests import zoo  # noqa: E402
from tests.exporting import export  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "src" / "ptegpu" / "demo"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
ENVIRONMENT = re.compile(r"[A-Z_]+=")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def command_lines(page: Path) -> list[list[str]]:
    """Return the arguments of every `ptegpu` command in the shell blocks of a page."""
    lines = []
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|>&;")
            lexer.whitespace_split, lexer.commenters = True, "#"
            words: list[str] = []
            for word in [*lexer, ";"]:
                if set(word) <= set("|>&;"):
                    while words and ENVIRONMENT.match(words[0]):
                        del words[0]
                    if words and words[0] == "ptegpu":
                        lines.append(words[1:])
                    words = []
                else:
                    words.append(word)
    return lines


def parse(command: Any, name: str, arguments: list[str], parent: Any = None) -> None:
    """Parse a command line without running it."""
    context = command.make_context(name, list(arguments), parent=parent)
    if hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        if rest:
            inner_name, inner, inner_arguments = command.resolve_command(context, rest)
            parse(inner, inner_name, inner_arguments, context)


COMMANDS = [(page.name, " ".join(line), line) for page in PAGES for line in command_lines(page)]


@pytest.mark.parametrize("line", [c[2] for c in COMMANDS], ids=[f"{c[0]}: {c[1]}"[:100] for c in COMMANDS])
def test_every_command_is_accepted(line: list[str]) -> None:
    parse(typer.main.get_command(app), "ptegpu", line)


def test_commands_are_found_and_wrong_ones_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nX=1 ptegpu run a.pte --json > b  # ptegpu no\nls | ptegpu doctor && ptegpu run --nonsense\n```\n"
    )
    lines = command_lines(page)
    assert [["run", "a.pte", "--json"], ["doctor"], ["run", "--nonsense"]] == lines
    with pytest.raises(Exception, match="nonsense"):
        parse(typer.main.get_command(app), "ptegpu", lines[-1])


class Convolution(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 4, 7, stride=32)

    def forward(self, x: Any) -> Any:
        return self.layer(x).mean((2, 3))


class Masked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: Any, mask: Any = None) -> Any:
        return self.layer(x) if mask is None else self.layer(x) * mask


CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def text_model(folder: Path, name: str = "model") -> dict[str, Any]:
    copy(DEMO / "tales.pte", folder / f"{name}.pte")
    copy(DEMO / "tales.tokenizer.json", folder / f"{name}.tokenizer.json")
    settings = json.loads((DEMO / "tales.tokenizer_config.json").read_text("utf-8"))
    (folder / f"{name}.tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": CHAT}))
    return {"ptegpu": ptegpu}


def image_model(folder: Path, **more: Any) -> dict[str, Any]:
    x = torch.zeros(1, 3, 224, 224)
    export(Convolution().eval(), (x,), folder / "model.pte", **more)
    return {"ptegpu": ptegpu, "torch": torch, "x": x}


def readme(folder: Path) -> dict[str, Any]:
    from ptegpu.export import MethodSource

    names = image_model(folder, methods={"decode": MethodSource(torch.nn.Linear(2, 2).eval(), (torch.zeros(1, 2),))})
    text_model(folder, "chat")
    return names


def start(folder: Path) -> dict[str, Any]:
    (source, *_) = blocks(ROOT / "docs" / "start.md", "python")
    names: dict[str, Any] = {}
    exec(source, names)
    module, inputs = names["classifier"]()
    batch = torch.export.Dim("n", min=1, max=64)
    export(module, inputs, folder / "classifier.pte", dynamic_shapes={"x": {0: batch}})
    return {}


def seeing(folder: Path) -> dict[str, Any]:
    from PIL import Image

    from ptegpu.export import export_llm

    export_llm(zoo.folder("seeing", "smolvlm"), folder / "smolvlm.pte")
    Image.new("RGB", (32, 32), "red").save(folder / "picture.png")
    text_model(folder, "small")
    return text_model(folder)


def speech(folder: Path) -> dict[str, Any]:
    import wave

    from ptegpu.export import export_speech

    export_speech(zoo.folder("hearing", "whisper"), folder / "whisper.pte")
    with wave.open(str(folder / "sound.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16000)
        sound.writeframes(bytes(3200))
    return {}


def modules(folder: Path) -> dict[str, Any]:
    ids = torch.zeros(1, 8, dtype=torch.long)
    return {
        "model": torch.nn.Linear(4, 4),
        "x": torch.zeros(2, 4),
        "encoder": zoo.specimens("tasks")["minilm"].build().eval(),
        "ids": ids,
        "mask": torch.ones_like(ids),
    }


def exporting(folder: Path) -> dict[str, Any]:
    from PIL import Image

    from ptegpu.export import export_hf

    for name, specimen in (("vit", "vit"), ("minilm", "minilm"), ("qa", "questions"), ("clip", "clip")):
        export_hf(zoo.folder("tasks", specimen), folder / f"{name}.pte")
    Image.new("RGB", (32, 32), "red").save(folder / "cat.png")
    (folder / "FOLDER").symlink_to(zoo.folder("tasks", "minilm"))
    (folder / "DIR").symlink_to(zoo.folder("families", "llama"))
    module = Masked().eval()
    return (
        text_model(folder)
        | {"torch": torch, "module": module, "encoder": module, "x": torch.zeros(2, 4)}
        | {
            "bert": zoo.specimens("tasks")["minilm"].build(),
            "mask": torch.ones(2, 4),
        }
    )


PREPARED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "README.md": readme,
    "start.md": start,
    "export.md": exporting,
    "generate.md": seeing,
    "speech.md": speech,
    "torch.md": modules,
    "bundles.md": image_model,
    "limits.md": image_model,
    "profiling.md": image_model,
    "web.md": lambda folder: {},
}
NOT_RUN = {  # page → why
    "adding-a-command.md": "parts of a module",
    "adding-a-kind.md": "rows of a table",
    "adding-a-pass.md": "part of a module; test_docs.py compares it with the source",
    "adding-a-task.md": "rows of a table",
    "adding-a-text-family.md": "rows of a table",
    "adding-an-engine.md": "parts of a module",
    "adding-an-operator.md": "parts of modules; test_docs.py compares the longer ones with the source",
    "architecture.md": "test_docs.py runs the worked example",
    "serving.md": "needs a server, Ray or a bucket; tests/serve and tests/ray make these calls",
}
SLOW = {"export.md"}  # four models are exported


def test_every_page_with_python_is_covered() -> None:
    assert {page.name for page in PAGES if blocks(page, "python")} <= PREPARED.keys() | NOT_RUN.keys()


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.heavy) if n in SLOW else n for n in PREPARED])
def test_python_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (page,) = (p for p in PAGES if p.name == name)
    names = PREPARED[name](tmp_path)
    monkeypatch.chdir(tmp_path)
    for k, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{name}, Python block {k}", "exec"), names)


def test_the_python_about_serving_compiles() -> None:
    for block in blocks(ROOT / "docs" / "serving.md", "python"):
        compile(block, "serving.md", "exec")
