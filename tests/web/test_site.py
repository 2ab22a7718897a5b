"""`ptegpu web`: the choice of a page, the files of a site, errors, and the server."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Invoke, invoke  # noqa: F401
from tests.test_layers import BLOCKER, SRC

import ptegpu
from ptegpu.errors import ExportError, InvalidInput, PtegpuError, UnsupportedProgram
from ptegpu.format import FileMethod, FileTensor, ProgramFile, read_program
from ptegpu.format.pte import DType
from ptegpu.models.card import Card
from ptegpu.models.door import ProgramSource
from ptegpu.models.parts import Audio, Image, Text
from ptegpu.models.tokenizer import CONFIG, FILE, TEMPLATE
from ptegpu.site import PAGES, VARIANTS, SiteServer, make_site, site
from ptegpu.site.pages import ImageInput, choose, find_image_input, image, task

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
DEMO = Path(ptegpu.__file__).parent / "demo"
TALES, DIGITS = DEMO / "tales.pte", DEMO / "digits.pte"
GENERIC = [VARIANTS["generic"]]
REAL = site.FILES


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the page files of web/, which has tests of its own, by short ones."""
    folder = tmp_path / "files"
    write_files(folder)
    monkeypatch.setattr(site, "FILES", folder)
    return folder


MODULES = {  # file → the modules it imports
    **{f"{page}.js": ["ptegpu", "worker"] for page in PAGES},
    "ptegpu.js": ["check", "host"],
    "worker.js": ["ptegpu", "llm"],
    "llm.js": ["ptegpu", "tokenizers", "template", "jinja"],
    **{f"{name}.js": ["ptegpu", "elsewhere"] for name in ("check", "host", "tokenizers", "template", "jinja")},
}
RUNNER = {"ptegpu.js", "worker.js", "check.js", "host.js", "style.css", "LICENSES.txt"}
CHAT = {*RUNNER, "chat.js", "llm.js", "tokenizers.js"}
TEMPLATES = {"template.js", "jinja.js"}


def write_files(folder: Path) -> None:
    folder.mkdir()
    for name, modules in MODULES.items():
        (folder / name).write_text("".join(f'import("./{module}.js");' for module in modules))
    for name in ("style.css", "LICENSES.txt"):
        (folder / name).write_text(name)
    for page in PAGES:
        (folder / f"{page}.html").write_text(f"<title>{{{{title}}}}</title><p>{page}: {{{{description}}}}</p>")


def page_config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "site.json").read_bytes())


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def content(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


# Files of a site

BUNDLE = {"bundle.json", "site.json", "index.html"}


@pytest.fixture(scope="module")
def tales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the site of the bundled language model with all variants."""
    folder = tmp_path_factory.mktemp("tales")
    write_files(folder / "files")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "FILES", folder / "files")
        make_site(TALES, folder / "site", check=False)
    return folder / "site"


def test_a_language_model(tales: Path) -> None:
    plans = {"variant-0.json", "variant-1.json", "variant-2.json", "shard-000.bin"}
    assert names(tales) == {*BUNDLE, *plans, *CHAT, FILE, CONFIG}
    for name in (FILE, CONFIG):
        assert (tales / name).read_bytes() == (DEMO / f"tales.{name}").read_bytes()
    about = page_config(tales)
    examples = about["language"].pop("examples")
    assert about == {
        "title": "tales",
        "page": "chat",
        "method": "ptegpu.generate",
        "made": f"ptegpu {ptegpu.__version__}",
        "model": {"file": "tales.pte", "bytes": TALES.stat().st_size},
        "language": {
            "method": "ptegpu.generate",
            "vocabulary": 2048,
            "context": 256,
            "chunk": 256,
            "every": True,
            "eos": [1],
            "tokens": "int64",
            "position": "int64",
            "tokenizer": FILE,
            "config": CONFIG,
            "template": None,
            "chat": False,
        },
    }
    assert examples and all(isinstance(e, str) for e in examples)


def test_it_is_a_bundle(tales: Path) -> None:
    """Python reads the site as a bundle of the generating method only."""
    bundle = ptegpu.Bundle.load(tales)
    assert [list(outers) for outers in bundle.methods] == [["ptegpu.generate"]] * len(VARIANTS)
    assert bundle.targets == tuple(VARIANTS.values())


def test_software_adapters_have_fewer_kernels_to_compile(tales: Path) -> None:
    counts = [len(json.loads((tales / f"variant-{k}.json").read_bytes())["kernels"]) for k in range(3)]
    assert counts[2] < min(counts[:2])


@pytest.mark.slow
def test_python_runs_a_site(tales: Path) -> None:
    from ptegpu.models.text import LanguageModel

    with LanguageModel(tales) as original, LanguageModel(TALES) as other:
        prompt = "The Wolf\n"
        assert original.generate(prompt, max_tokens=3).text == other.generate(prompt, max_tokens=3).text


def test_an_image_model(tmp_path: Path) -> None:
    site = make_site(DIGITS, tmp_path / "site", labels=[*"abcdefghij"], mean=[0.5], targets=GENERIC)
    assert names(tmp_path / "site") - {"check.bin"} == {*BUNDLE, *RUNNER, "image.js", "variant-0.json", "shard-000.bin"}
    about = page_config(tmp_path / "site")
    assert (about["page"], about["method"]) == ("image", "forward")
    assert about["image"] == {
        "shape": [1, 8, 8],
        "channels": 1,
        "height": 8,
        "width": 8,
        "scale": 1 / 255,
        "mean": [0.5],
        "std": [1.0],
        "labels": [*"abcdefghij"],
        "draw": True,
        "softmax": False,  # the program applies it
    }
    assert site.page.why == "it returns 10 numbers for a grey picture of 8 × 8"
    assert {f.name: f.nbytes for f in site.files} == {p.name: p.stat().st_size for p in site.folder.iterdir()}
    assert {f.part for f in site.files} == {"page", "runner", "plans", "weights"}


def test_any_program(tmp_path: Path) -> None:
    """Methods that only return constants are omitted."""
    make_site(DATA / "methods.pte", tmp_path / "site", targets=GENERIC)
    about = page_config(tmp_path / "site")
    assert (about["page"], about["method"], about["title"]) == ("any", "forward", "methods")
    methods = [m["name"] for m in json.loads((tmp_path / "site" / "variant-0.json").read_bytes())["methods"]]
    bundle = ptegpu.compile(DATA / "methods.pte")
    assert methods == [name for name, outer in bundle.methods[0].items() if outer.items]
    assert {"language", "image"} & set(about) == set()


def test_constants_are_left_out(tmp_path: Path) -> None:
    make_site(TALES, tmp_path / "site", page="any", targets=GENERIC, sizes={"input 0[1]": [1]}, check=False)
    assert [*ptegpu.Bundle.load(tmp_path / "site").methods[0]] == ["forward"]
    assert page_config(tmp_path / "site")["page"] == "any"


def test_titles_are_text(tmp_path: Path) -> None:
    make_site(DIGITS, tmp_path / "site", title="<b>&", description='a "b"', targets=GENERIC, check=False)
    page = (tmp_path / "site" / "index.html").read_text()
    assert page == "<title>&lt;b&gt;&amp;</title><p>image: a &quot;b&quot;</p>"
    assert page_config(tmp_path / "site")["title"] == "<b>&"


def test_equal_targets_share_a_file(tmp_path: Path) -> None:
    twins = [*GENERIC, replace(*GENERIC, name="twin"), VARIANTS["software"]]
    twin_site = make_site(DIGITS, tmp_path / "site", targets=twins, check=False)
    assert twin_site.variants == (
        ("generic", "variant-0.json"),
        ("twin", "variant-0.json"),
        ("software", "variant-1.json"),
    )


def test_equal_programs_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_site(DIGITS, tmp_path / name)
        make_site(DATA / "control.pte", tmp_path / f"{name}-control")
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert content(tmp_path / "one-control") == content(tmp_path / "two-control")


@pytest.mark.slow
def test_a_language_model_twice(tales: Path, tmp_path: Path) -> None:
    make_site(TALES, tmp_path / "site", check=False)
    assert content(tmp_path / "site") == content(tales)


def test_a_chat_template_beside_the_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    shutil.copy(DEMO / f"tales.{FILE}", folder / FILE)
    (folder / TEMPLATE).write_text("{{ messages }}")
    options = {"targets": GENERIC, "check": False, "sizes": {"input 0[1]": [1]}}
    make_site(TALES, tmp_path / "site", tokenizer=folder, examples=["Hello"], **options)
    language = page_config(tmp_path / "site")["language"]
    assert (language["config"], language["template"], language["chat"]) == (None, TEMPLATE, True)
    assert language["examples"] == ["Hello"]
    assert (tmp_path / "site" / TEMPLATE).read_text() == "{{ messages }}"
    assert names(tmp_path / "site") > TEMPLATES
    (folder / TEMPLATE).unlink()
    (folder / CONFIG).write_text('{"chat_template": "x"}')
    make_site(TALES, tmp_path / "site", tokenizer=folder / FILE, **options)
    language = page_config(tmp_path / "site")["language"]
    assert (language["config"], language["template"], language["chat"]) == (CONFIG, None, True)
    assert TEMPLATE not in names(tmp_path / "site")


def test_a_bundle_becomes_a_site(tmp_path: Path) -> None:
    ptegpu.compile(DIGITS).save(tmp_path / "digits.bundle")
    make_site(tmp_path / "digits.bundle", tmp_path / "one", title="x", targets=None)
    make_site(DIGITS, tmp_path / "two", title="x", targets=GENERIC)
    first, two = content(tmp_path / "one"), content(tmp_path / "two")
    assert [name for name in first if first[name] != two[name]] == ["site.json"]  # it contains the file's name
    with pytest.raises(InvalidInput, match="is a bundle: data, sizes and targets were chosen by `ptegpu compile`"):
        make_site(tmp_path / "digits.bundle", tmp_path / "three", targets=GENERIC)


@pytest.mark.parametrize("file", [DIGITS, DATA / "mlp.pte", TALES])
def test_the_real_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """The folder has every file that a page and its modules load."""
    monkeypatch.setattr(site, "FILES", REAL)
    sizes = {"input 0[1]": [1]} if file == TALES else {}
    folder = make_site(file, tmp_path / "site", sizes=sizes, targets=GENERIC, check=False).folder
    page = (folder / "index.html").read_text("utf-8")
    assert "{{" not in page and f"<title>{file.stem}</title>" in page
    policy = page.index('http-equiv="Content-Security-Policy" content="default-src \'none\'; ')
    assert policy < page.index("<script") and policy < page.index("<link")
    linked = re.findall(r'(?:src|href)="([^"#:]+)"', page)
    assert f"{page_config(folder)['page']}.js" in linked
    assert set(linked) <= names(folder)
    named = {n for path in folder.glob("*.js") for n in re.findall(r'from"\./([a-z]+\.js)"', path.read_text("utf-8"))}
    assert named <= names(folder)


# Choice of the page


def method(inputs: list[Any], outputs: list[Any], name: str = "forward") -> FileMethod:
    values = (*inputs, *outputs)
    count = len(inputs)
    return FileMethod(name, values, tuple(range(count)), tuple(range(count, len(values))), ((),), (), "", "")


def tensor(*sizes: int, dtype: DType = DType.F32, dynamic: bool = False) -> FileTensor:
    return FileTensor(dtype, sizes, tuple(range(len(sizes))), dynamic)


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        (tensor(1, 3, 224, 224), tensor(1, 1000), ImageInput((1, 3, 224, 224), 3, 224, 224, 1000)),
        (tensor(8, 3, 32, 48, dynamic=True), tensor(8, 5), ImageInput((1, 3, 32, 48), 3, 32, 48, 5)),
        (tensor(1, 1, 28, 28), tensor(10), ImageInput((1, 1, 28, 28), 1, 28, 28, 10)),
        (tensor(1, 8, 8), tensor(1, 10), ImageInput((1, 8, 8), 1, 8, 8, 10)),
        (tensor(1, 8, 16), tensor(1, 10), "not that of a picture"),
        (tensor(2, 3, 32, 32), tensor(2, 10), "not that of a picture"),
        (tensor(1, 4, 32, 32), tensor(1, 10), "not that of a picture"),
        (tensor(1, 3, 2, 2), tensor(1, 10), "not that of a picture"),
        (tensor(1, 3, 4, 4000), tensor(1, 10), "not that of a picture"),
        (tensor(), tensor(1, 10), "not that of a picture"),
        (tensor(1, 3, 32, 32), tensor(1, 1), "not a number for each class"),
        (tensor(1, 3, 32, 32), tensor(1, 10, 7, 7), "not a number for each class"),
        (tensor(1, 3, 32, 32, dtype=DType.I32), tensor(1, 10), "does not take exactly one float32 tensor"),
        (7, tensor(1, 10), "does not take exactly one float32 tensor"),
        (tensor(1, 3, 32, 32), tensor(1, 10, dtype=DType.I64), "does not return exactly one tensor of floats"),
    ],
)
def test_what_is_a_picture(inputs: Any, outputs: Any, expected: ImageInput | str) -> None:
    picture = find_image_input(method([inputs], [outputs]))
    assert picture == expected if isinstance(expected, ImageInput) else expected in picture
    program = ProgramFile(None, 0, 0, (method([inputs], [outputs]),), {})
    assert choose(ProgramSource.of(program), None).name == ("image" if isinstance(expected, ImageInput) else "any")
    assert choose(ProgramSource.of(program), "any").name == "any"


def test_two_pictures_are_none() -> None:
    picture = tensor(1, 3, 32, 32)
    assert "does not take exactly one" in str(find_image_input(method([picture, picture], [tensor(1, 10)])))
    assert "does not return exactly one" in str(find_image_input(method([picture], [tensor(1, 10)] * 2)))


@pytest.mark.parametrize(
    ("file", "page", "message"),
    [
        (
            DIGITS,
            "chat",
            "the page chat is not for this program: .* is not a language model: its forward takes 1 inputs",
        ),
        (
            TALES,
            "image",
            "the page image is not for this program: forward does not take exactly one float32 tensor; take",
        ),
        (DIGITS, "film", "unknown page 'film': expected chat, image, task, any"),
    ],
)
def test_a_page_that_does_not_fit(file: Path, page: Any, message: str) -> None:
    with pytest.raises(PtegpuError, match=message) as e:
        choose(ProgramSource.of(file), page)
    assert "\n" not in str(e.value)


def with_card(file: Path, card: Card) -> ProgramSource:
    """Return the program of a file with this card."""
    program = read_program(file)
    method = replace(program.methods[0], name="ptegpu_card", values=(card.json(),), inputs=(), outputs=(0,))
    return ProgramSource.of(replace(program, methods=(*program.methods, method)))


def test_a_program_that_says_what_it_is_for(tmp_path: Path) -> None:
    picture = Image(8, 8, 1, 1, (0.5,), (0.25,), shortest=9)
    digits = choose(
        with_card(DIGITS, Card.of_task("image-classification", "Net", image=picture, labels=(*"abcdefghij",))), None
    )
    assert "image" == digits.name
    outer = ptegpu.compile(DIGITS).methods[0]["forward"]
    about = image(digits, outer, None, None, [1.0])
    assert ([*"abcdefghij"], [0.5], [1.0]) == (about["labels"], about["mean"], about["std"])
    assert (9, None) == (about["shortest"], about["resize"])
    card = Card.of_task("text-classification", "Bert", text=Text(32, 8), labels=("bad", "good"))
    page = choose(with_card(DIGITS, card), None)
    assert ("task", "it is for text-classification") == (page.name, page.why)
    (tmp_path / "m.tokenizer.json").write_text("{}")
    settings, files = task(page, tmp_path / "m.pte", None)
    assert {"tokenizer.json"} == set(files)
    assert ("text-classification", "labels", False, ("bad", "good")) == (
        settings["task"],
        settings["result"],
        settings["context"],
        settings["labels"],
    )
    assert (32, 8, 0) == (settings["text"]["length"], settings["text"]["batch"], settings["text"]["pad"])
    assert "any" == choose(with_card(DIGITS, card), "any").name
    sounds = Card.of_task("audio-classification", "AST", audio=Audio(16_000, 9000, 400, 160, "fbank", False, 32, 9))
    assert "image" == choose(with_card(DIGITS, sounds), None).name  # by its shapes
    with pytest.raises(
        UnsupportedProgram, match="the page task is not for this program: pages cannot compute spectrograms"
    ):
        choose(with_card(DIGITS, sounds), "task")
    with pytest.raises(
        UnsupportedProgram, match="the page task is not for this program: it is a program that does not say"
    ):
        choose(ProgramSource.of(DIGITS), "task")


def test_logits_are_told_from_probabilities(tmp_path: Path) -> None:
    make_site(DATA / "cnn.pte", tmp_path / "site", targets=GENERIC, check=False, mean=[0.1, 0.2, 0.3], std=[2])
    image = page_config(tmp_path / "site")["image"]
    assert (image["softmax"], image["draw"], image["mean"], image["std"]) == (True, False, [0.1, 0.2, 0.3], [2.0] * 3)


# Errors


@pytest.mark.parametrize(
    ("file", "options", "kind", "message"),
    [
        (
            DATA / "counting.pte",
            {},
            UnsupportedProgram,
            r"counting.pte cannot run in a browser: it needs NumPy for .*aten.masked_scatter.default",
        ),
        (DIGITS, {"labels": ["a"]}, InvalidInput, "1 labels for 10 classes: give one for each class"),
        (DIGITS, {"mean": [1, 2, 3]}, InvalidInput, r"invalid mean \[1.0, 2.0, 3.0\]: expected one number"),
        (
            DATA / "cnn.pte",
            {"std": [1, 0, 1]},
            InvalidInput,
            "invalid std .*: expected one number, or 3, one for each channel, not 0",
        ),
        (DIGITS, {"mean": [float("nan")]}, InvalidInput, r"invalid mean \[nan\]: expected one number"),
        (DIGITS, {"tokenizer": "x"}, InvalidInput, "tokenizer is for the page chat; this one is image: it returns 10"),
        (DATA / "mlp.pte", {"labels": ["a"]}, InvalidInput, "labels is for the page image; this one is any"),
        (TALES, {"tokenizer": "nowhere"}, InvalidInput, "no tokenizer: nowhere does not exist"),
        (DIGITS, {"sizes": {"x": [1]}}, InvalidInput, "unknown dynamic size 'x'"),
        (DATA / "dynamic.pte", {}, PtegpuError, "data"),
        (DATA / "nowhere.pte", {}, OSError, "No such file"),
    ],
)
def test_what_is_refused(tmp_path: Path, file: Path, options: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as e:
        make_site(file, tmp_path / "site", **options)
    assert "\n" not in str(e.value)
    assert names(tmp_path) == {"files"}


def test_a_language_model_without_a_tokenizer(tmp_path: Path) -> None:
    shutil.copy(TALES, tmp_path / "model.pte")
    looked = f"looked for {tmp_path / 'model.tokenizer.json'} and {tmp_path / 'tokenizer.json'}"
    with pytest.raises(InvalidInput, match=f"no tokenizer: {looked}; pass one"):
        make_site(tmp_path / "model.pte", tmp_path / "site")
    for text in ("{", "[]"):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(InvalidInput, match=r"tokenizer.json (is not JSON|does not hold a JSON object)"):
            make_site(tmp_path / "model.pte", tmp_path / "site")


# The folder of a site


def make(folder: Path, **options: Any) -> None:
    make_site(DATA / "mlp.pte", folder, targets=GENERIC, check=False, **options)


def test_a_site_is_replaced(tmp_path: Path) -> None:
    make_site(DIGITS, tmp_path / "site", check=False)
    make(tmp_path / "site")
    make(tmp_path / "other")
    assert content(tmp_path / "site") == content(tmp_path / "other")
    assert names(tmp_path) == {"files", "site", "other"}


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    make(tmp_path / "site")
    assert page_config(tmp_path / "site")["title"] == "mlp"


def test_other_things_are_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "thesis.tex").write_text("precious")
    with pytest.raises(ExportError, match="is not empty and was not made by ptegpu: name another folder, or empty it"):
        make(folder)
    (folder / "site.json").write_text('{"made": "by hand"}')
    with pytest.raises(ExportError, match="was not made by ptegpu"):
        make(folder)
    (folder / "site.json").write_text('{"made": "ptegpu 0.1.0"}')
    with pytest.raises(ExportError, match=r"site/thesis.tex does not belong to a site: move it away, or name another"):
        make(folder)
    assert (folder / "thesis.tex").read_text() == "precious"
    with pytest.raises(ExportError, match="is a file; name a folder for the site"):
        make(folder / "thesis.tex")
    with pytest.raises(ExportError, match=r"there is no folder .*; create it first"):
        make(tmp_path / "no" / "site")


def test_whole_or_not_at_all(tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "site")
    before = content(tmp_path / "site")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(site, "save_web", fail)
    with pytest.raises(OSError, match="No space left"):
        make(tmp_path / "site", title="other")
    assert content(tmp_path / "site") == before
    assert names(tmp_path) == {"files", "site"}


# Reference results


def numbers(folder: Path, entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    data = (folder / "check.bin").read_bytes()[entry["at"] : entry["at"] + entry["length"]]
    return np.frombuffer(data, entry["dtype"]).reshape(entry["shape"])


@pytest.mark.parametrize("name", ["mlp", "control", "cnn"])
def test_the_reference_is_what_the_program_gives(tmp_path: Path, name: str) -> None:
    written = make_site(DATA / f"{name}.pte", tmp_path / "site", targets=GENERIC)
    assert (written.check, written.note) == (True, "")
    check = page_config(written.folder)["check"]
    inputs = [numbers(written.folder, entry) for entry in check["inputs"]]
    with ptegpu.load(DATA / f"{name}.pte") as program:
        expected = program.method(check["method"]).execute(inputs)
    assert len(expected) == len(check["outputs"])
    for result, other in zip(expected, check["outputs"]):
        np.testing.assert_allclose(result, numbers(written.folder, other), rtol=1e-4, atol=1e-5)


def test_sizes_are_kept_by_the_reference(tmp_path: Path) -> None:
    data = [DATA / "dynamic-0.ptd", DATA / "dynamic-1.ptd"]
    sizes = {"input 0[0]": [1], "input 0[1]": [4, 7]}
    written = make_site(DATA / "dynamic.pte", tmp_path / "site", data=data, sizes=sizes, targets=GENERIC)
    assert written.check, written.note
    assert page_config(written.folder)["check"]["inputs"][0]["shape"] == [1, 7]


@pytest.mark.slow
def test_the_reference_of_a_language_model(tmp_path: Path) -> None:
    """The reference scores of tokens are those of Python's model."""
    from ptegpu.models.text import LanguageModel

    written = make_site(TALES, tmp_path / "site", targets=[VARIANTS["software"]])
    check = page_config(written.folder)["check"]
    assert check["outputs"][:2] == [None, None]
    (tokens,), (targets,) = (numbers(written.folder, check["inputs"][k]).tolist() for k in (0, 5))
    assert tokens[1:] == targets[:-1]
    with LanguageModel(TALES) as model:
        expected = model.score([*tokens, targets[-1]])
    np.testing.assert_allclose(expected, numbers(written.folder, check["outputs"][2])[0], rtol=1e-4)


def test_without_an_adapter_there_is_none(tmp_path: Path) -> None:
    """Making a site needs neither wgpu nor torch."""
    code = (
        f"{BLOCKER}\nsys.path.insert(0, {str(SRC)!r})\nfrom pathlib import Path\nfrom ptegpu.site import site\n"
        f"site.FILES = Path({str(tmp_path / 'files')!r})\n"
        f"written = site.make_site({str(DIGITS)!r}, {str(tmp_path / 'site')!r})\nprint(written.check, written.note)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False wgpu is blocked: this layer must import without it\n", "")
    assert "check" not in page_config(tmp_path / "site")
    assert "check.bin" not in names(tmp_path / "site")


def test_what_takes_long_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptegpu.site.check.SECONDS", 0.0)
    written = make_site(DIGITS, tmp_path / "site", targets=GENERIC)
    assert not written.check
    assert written.note.endswith(" takes too long")
    monkeypatch.setattr("ptegpu.site.check.SECONDS", 1.0)
    monkeypatch.setattr("ptegpu.site.check.MOST_BYTES", 100)
    assert make_site(DIGITS, tmp_path / "site", targets=GENERIC).note == "its inputs and outputs have 296 bytes"


# The command


def test_the_command(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.chdir(tmp_path)
    ended = invoke("web", "digits")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].startswith("digits-site · ") and "made of digits.pte in" in lines[0]
    assert lines[1] == "The page is image: it returns 10 numbers for a grey picture of 8 × 8."
    rows = [line.split() for line in lines]
    assert ["part", "file", "size", "gzipped", "for"] in rows
    assert any(row[:1] == ["variant-1.json"] and row[-1] == "generic" for row in rows)
    assert lines[-1].startswith("A first visit loads ")
    about = page_config(tmp_path / "digits-site")
    assert (about["title"], about["image"]["labels"]) == ("Handwritten digits", [*"0123456789"])


def test_json(invoke: Invoke, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "labels.txt").write_text("".join(f"class {k}\n" for k in range(5)))
    options = ["--labels", tmp_path / "labels.txt", "--mean", "0.5", "--std", "0.1,0.2,0.3", "--title", "Pictures"]
    report = invoke(
        "web", DATA / "cnn.pte", "-o", tmp_path / "site", *options, "--variant", "generic", "--no-check", "--json"
    ).json()
    assert (report["site"], report["page"], report["title"]) == (str(tmp_path / "site"), "image", "Pictures")
    assert report["variants"] == [{"name": "generic", "file": "variant-0.json"}]
    assert report["check"] is False
    sizes = {f["name"]: (f["nbytes"], f["gzipped"]) for f in report["files"]}
    text = (tmp_path / "site" / "variant-0.json").read_bytes()
    assert sizes["variant-0.json"] == (len(text), len(gzip.compress(text, 9)))
    assert sizes["shard-000.bin"][0] == sizes["shard-000.bin"][1]
    image = page_config(tmp_path / "site")["image"]
    assert (image["labels"][4], image["mean"], image["std"]) == ("class 4", [0.5] * 3, [0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([DIGITS, "--variant", "quantum"], 2, "'quantum' is not one of subgroups, generic, software"),
        ([DIGITS, "--mean", "a,b"], 2, "'a,b': expected numbers, such as 0.5,0.5,0.5"),
        ([DIGITS, "--size", "x"], 2, "'x' is not of the form"),
        ([DIGITS, "--page", "film"], 2, "'film' is not one of 'chat', 'image', 'task', 'any'"),
        ([DATA / "counting.pte"], 1, "needs NumPy for"),
        (["nowhere.pte"], 1, "nowhere.pte: No such file or directory"),
        ([DIGITS, "--labels", DIGITS], 1, "is not UTF-8"),
    ],
)
def test_errors_are_one_line(
    invoke: Invoke,  # noqa: F811
    tmp_path: Path,
    arguments: list[Any],
    code: int,
    message: str,
) -> None:
    ended = invoke("web", *arguments, "-o", tmp_path / "site")
    assert (ended.code, ended.out, ended.err.count("\n")) == (code, "", 1)
    assert message in ended.err
    assert not (tmp_path / "site").exists()


# The server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SiteServer]:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "index.html").write_text("<p>hello")
    (folder / "site.json").write_text(json.dumps({"x": [1] * 1000}))
    (folder / "shard-000.bin").write_bytes(bytes(range(256)))
    (folder / "chat.js").write_text("export {};")
    (folder / "inner").mkdir()
    (folder / "inner" / "x.txt").write_text("hidden")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "outside.txt").symlink_to("../secret.txt")
    (folder / "copy.html").symlink_to("index.html")
    with SiteServer(folder, 0, ["site.example"]) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.1,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


Answer = tuple[int, dict[str, str], bytes]


def ask(server: SiteServer, path: str, method: str = "GET", **head: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.split(":")[2].strip("/")), timeout=30)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in head.items()})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, dict(response.getheaders()), body


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/", "text/html; charset=utf-8", b"<p>hello"),
        ("/?x=1", "text/html; charset=utf-8", b"<p>hello"),
        ("/chat.js", "text/javascript; charset=utf-8", b"export {};"),
        ("/shard%2D000.bin", "application/octet-stream", bytes(range(256))),
    ],
)
def test_files_are_served(server: SiteServer, path: str, kind: str, body: bytes) -> None:
    status, head, content = ask(server, path)
    assert (status, head["Content-Type"], content) == (200, kind, body)
    assert (head["Cache-Control"], head["Accept-Ranges"]) == ("no-store", "bytes")
    status, head, content = ask(server, path, "HEAD")
    assert (status, head["Content-Length"], content) == (200, str(len(body)), b"")


def test_text_is_compressed(server: SiteServer) -> None:
    _, plain, text = ask(server, "/site.json")
    _, head, body = ask(server, "/site.json", Accept_Encoding="br, gzip")
    assert (head["Content-Encoding"], gzip.decompress(body)) == ("gzip", text)
    assert "Content-Encoding" not in plain
    assert "Content-Encoding" not in ask(server, "/shard-000.bin", Accept_Encoding="gzip")[1]


@pytest.mark.parametrize(
    ("requested", "status", "start", "end"),
    [
        ("bytes=0-9", 206, 0, 10),
        ("bytes=250-", 206, 250, 256),
        ("bytes=250-999", 206, 250, 256),
        ("bytes=-6", 206, 250, 256),
        ("bytes=-999", 206, 0, 256),
        ("bytes=256-", 416, 0, 0),
        ("bytes=-", 200, 0, 256),
        ("lines=1-2", 200, 0, 256),
        ("bytes=0-1,4-5", 200, 0, 256),
    ],
)
def test_parts_of_files(server: SiteServer, requested: str, status: int, start: int, end: int) -> None:
    code, head, body = ask(server, "/shard-000.bin", Range=requested)
    assert (code, body) == (status, bytes(range(start, end)))
    expected = {206: f"bytes {start}-{end - 1}/256", 416: "bytes */256"}.get(status)
    assert head.get("Content-Range") == expected


@pytest.mark.parametrize(
    "path",
    [
        "/no.txt",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/inner/x.txt",
        "/inner",
        "/..",
        "/.",
        "/a%00b",
        "/outside.txt",
        f"/{'a' * 5000}",
    ],
)
def test_nothing_else_is_served(server: SiteServer, path: str) -> None:
    status, _, body = ask(server, path)
    assert (status, body) == (404, b"There is no such file.\n")


def test_a_link_inside_the_folder_is_served(server: SiteServer) -> None:
    assert (200, b"<p>hello") == ask(server, "/copy.html")[::2]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:80", 200), ("127.0.0.1", 200), ("site.example", 200), ("evil.example", 403), ("192.0.2.7", 403)],
)
def test_the_server_answers_to_its_own_names_only(server: SiteServer, method: str, host: str, status: int) -> None:
    code, _, body = ask(server, "/", method, Host=host)
    assert status == code
    assert b"hello" not in body or 200 == status


def test_a_port_that_is_taken(server: SiteServer, tmp_path: Path) -> None:
    port = int(server.url.split(":")[2].strip("/"))
    with pytest.raises(InvalidInput, match=f"port {port}: .*; choose another one with --port"):
        SiteServer(tmp_path, port)


def test_a_taken_port_is_told_before_anything_is_made(invoke: Invoke, server: SiteServer, tmp_path: Path) -> None:  # noqa: F811
    port = int(server.url.split(":")[2].strip("/"))
    ended = invoke("web", "digits", "-o", tmp_path / "new", "--serve", "--port", port)
    assert (ended.code, ended.out, (tmp_path / "new").exists()) == (1, "", False)
    assert ended.err.startswith(f"error: port {port}: ") and ended.err.endswith("choose another one with --port\n")


def test_serve_ends_with_an_interrupt(tmp_path: Path, files: Path) -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # the parent process may ignore it
        f"import sys; sys.path.insert(0, {str(SRC)!r})\nfrom pathlib import Path\nfrom ptegpu.site import site\n"
        f"site.FILES = Path({str(files)!r})\nfrom ptegpu.cli import main\n"
        f"main(['web', 'digits', '-o', {str(tmp_path / 'site')!r}, '--no-check', '--serve', '--port', '0'])"
    )
    running = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert running.stdout is not None
        line = next(line for line in running.stdout if line.startswith(b"Serving"))
        address = line.split()[1].decode()
        connection = http.client.HTTPConnection("127.0.0.1", int(address.split(":")[2].strip("/")), timeout=30)
        connection.request("GET", "/site.json")
        assert json.loads(connection.getresponse().read())["title"] == "Handwritten digits"
        connection.close()
        running.send_signal(2)
        _, err = running.communicate(timeout=30)
        assert (running.returncode, err) == (0, b"")
    finally:
        running.kill()
        running.wait()


@pytest.mark.torch
@pytest.mark.slow
def test_five_minutes(tmp_path: Path) -> None:
    """Make the site of the first module in docs/web.md."""
    from ptegpu.export import export

    page = (ROOT / "docs" / "web.md").read_text("utf-8")
    (code, *_) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert "ptegpu export torch model:small -o small.pte\n" in page
    scope: dict[str, Any] = {}
    exec(code, scope)
    export(*scope["small"](), tmp_path / "small.pte")
    make_site(tmp_path / "small.pte", tmp_path / "site", targets=GENERIC)
    assert page_config(tmp_path / "site")["page"] == "image"
