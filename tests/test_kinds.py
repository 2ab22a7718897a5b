"""The table of kinds, row by row: export; opening from folder, file, bundle and bytes; pages; servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree
from typing import Any, NamedTuple

import pytest

import ptegpu
from ptegpu.errors import InvalidProgram, UnsupportedProgram
from ptegpu.format import pte
from ptegpu.models.checkpoints import exported_once
from ptegpu.models.door import ProgramSource
from ptegpu.models.kinds import KINDS, SERVED, kind_of_folder, resolve
from ptegpu.models.speech import SpeechModel
from ptegpu.models.tasks.pipeline import Pipeline
from ptegpu.models.tasks.specs import TASKS
from ptegpu.models.text import LanguageModel
from ptegpu.runtime import LoadOptions
from ptegpu.serve.models import open_model
from ptegpu.site.pages import PAGES, choose
from tests import zoo
from tests.test_layers import run_blocked

torch = pytest.importorskip("torch")


def write_text(folder: Path) -> None:
    import tokenizers
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=32, max_position_embeddings=32, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    words = tokenizers.models.WordLevel({f"w{k}": k for k in range(32)}, unk_token="w0")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def copied(kind: str, name: str) -> Callable[[Path], object]:
    """Return a function that writes the folder of a tiny model."""
    return lambda folder: copytree(zoo.folder(kind, name), folder, dirs_exist_ok=True)


class Row(NamedTuple):
    """The expectations for a kind."""

    opens: type
    page: str
    write: Callable[[Path], object] | None = None  # writes a checkpoint folder; None: the kind has no folders


ROWS = {
    "text": Row(LanguageModel, "chat", write_text),
    "vision-language": Row(LanguageModel, "chat", copied("seeing", "smolvlm")),
    "speech": Row(SpeechModel, "any", copied("hearing", "whisper")),
    "task": Row(Pipeline, "task", copied("tasks", "minilm")),
    "program": Row(ptegpu.Program, "any"),
}


class Program(NamedTuple):
    kind: str
    folder: Path | None
    file: Path
    bundle: Path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PTEGPU_CACHE", str(folder := tmp_path_factory.mktemp("cache")))
        yield folder


@pytest.fixture(scope="module", params=KINDS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Program:
    """Make a program of each kind: its folder, the file from the row's exporter, and a bundle of that file."""
    kind: str = request.param
    place = tmp_path_factory.mktemp(kind)
    folder, file, bundle = place / "checkpoint", place / "model.pte", place / "model.bundle"
    row = KINDS[kind]
    write = ROWS[kind].write
    if write is None:
        assert row.exporter is None
        file.write_bytes((Path(__file__).parent / "data" / "mlp.pte").read_bytes())
    else:
        assert row.exporter is not None
        folder.mkdir()
        write(folder)
        assert kind == kind_of_folder(folder)
        exported = exported_once(folder)  # with the row's exporter
        file.write_bytes(exported.read_bytes())
        for beside in exported.parent.glob(f"{exported.stem}.tokenizer*"):
            (place / beside.name.removeprefix(f"{exported.stem}.")).write_bytes(beside.read_bytes())
    ptegpu.compile(file).save(bundle)
    return Program(kind, folder if write else None, file, bundle)


def test_every_kind_and_task_has_what_the_table_names() -> None:
    assert set(ROWS) == set(KINDS)
    for row in KINDS.values():
        assert row.page in PAGES
        for name in (row.opener, row.plans, row.exporter, row.endpoint):
            assert name is None or callable(resolve(name))
    drawn = (Path(__file__).parent.parent / "web" / "pages" / "task.js").read_text("utf-8")
    for task, spec in TASKS.items():
        assert callable(spec.read) and f'"{task}"' not in drawn
        assert spec.drawn in ("embedding", "array") or f'facts.result === "{spec.drawn}"' in drawn or spec.draws


@pytest.mark.parametrize("form", ["folder", "file", "bundle", "bytes"])
def test_it_opens(program: Program, form: str) -> None:
    if form == "folder" and program.folder is None:
        assert KINDS[program.kind].exporter is None
        with pytest.raises(InvalidProgram, match=r"has no config\.json: give a program"):
            ptegpu.open(program.file.parent)
        return
    sources = {
        "folder": program.folder,
        "file": program.file,
        "bundle": program.bundle,
        "bytes": program.file.read_bytes(),
    }
    source = sources[form]
    beside = program.file.with_name("tokenizer.json")
    with ptegpu.open(source, tokenizer=beside if beside.exists() else None) as model:
        assert type(model) is ROWS[program.kind].opens


def test_a_file_is_parsed_once(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for `ptegpu.open` and for a server."""
    parsed: list[Any] = []
    read = pte._read_header

    def counted(data: Any, path: Any) -> Any:
        parsed.append(path)
        return read(data, path)

    monkeypatch.setattr(pte, "_read_header", counted)
    ptegpu.open(program.file).close()
    assert 1 == len(parsed)
    try:
        open_model(program.file, "model", LoadOptions()).close()
    except UnsupportedProgram:
        assert program.kind not in SERVED or program.kind == "program"
    assert 2 == len(parsed)


def test_it_is_shown(program: Program) -> None:
    for path in (program.file, program.bundle):
        assert ROWS[program.kind].page == choose(ProgramSource.of(path), None).name


def test_it_is_served_or_refused(program: Program) -> None:
    if program.kind in ("speech", "program"):
        with pytest.raises(UnsupportedProgram, match="cannot be served"):
            open_model(program.file, "model", LoadOptions())
    else:
        engine = open_model(program.file, "model", LoadOptions())
        assert "model" == engine.model.name
        engine.close()


def test_a_folder_of_another_kind_is_refused_at_once(program: Program, tmp_path: Path) -> None:
    for opener in {LanguageModel, SpeechModel, Pipeline} - {ROWS[program.kind].opens}:
        started = time.perf_counter()
        if program.folder is None:
            with pytest.raises(InvalidProgram, match=r"has no config\.json: give a program"):
                opener(program.file.parent)
        else:
            refusal = r"checkpoint is a checkpoint of \w+, which becomes a .*, not a "
            with pytest.raises(UnsupportedProgram, match=refusal):
                opener(program.folder)
        assert time.perf_counter() - started < 1


def test_that_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    done = run_blocked(
        "from ptegpu.errors import UnsupportedProgram\n"
        "from ptegpu.models.text import LanguageModel\n"
        "try:\n"
        f"    LanguageModel({str(tmp_path)!r})\n"
        "except UnsupportedProgram as e:\n"
        "    print(e)\n"
    )
    refusal = f"{tmp_path} is a checkpoint of BertModel, which becomes a program for a task, not a language model"
    assert done.stdout.startswith(refusal) and "" == done.stderr
