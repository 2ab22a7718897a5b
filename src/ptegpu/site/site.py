"""A program as a folder for static hosts: a page, the runner, the bundle, and the page's settings in `site.json`.

The folder is flat, and its files name each other without paths, so it can be served from anywhere. It is written
completely or not at all, and equal programs give equal bytes.
"""

from __future__ import annotations

import gzip
import html
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..compiler import plan_program
from ..errors import ExportError, InvalidInput, UnsupportedProgram
from ..files import naming, read
from ..models.door import ProgramSource
from ..models.kinds import TASK
from ..models.tasks.specs import points_of
from ..models.text.compiling import GENERATE, plans
from ..plan import CLASSES, Bundle, CompiledMethod, Target
from ..plan.bundle import MANIFEST
from ..plan.save import save_web
from ..portable import PORTABLE, PRIMS
from ..printing import shown
from ..progress import Progress, silent
from ..runtime import LoadOptions
from .check import SiteCheck, make_check
from .pages import PAGES, Name, Page, choose, default_method, image, language, page_files, task

FILES = Path(__file__).parent / "files"  # written by `node web/build.mjs`
SITE = "site.json"
VARIANTS: Mapping[str, Target] = {  # in the order of preference
    "subgroups": Target("subgroups", subgroups=True, subgroup_size=32),  # as NVIDIA has them
    "generic": Target(),
    "software": Target("software", device_class=CLASSES["software"], few_rows=1),  # kernels for few rows compile slowly
}
_OURS = re.compile(
    r"(index\.html|style\.css|LICENSES\.txt|[a-z]+\.js|bundle\.json|variant-\d+\.json|shard-\d+\.bin|site\.json"
    r"|check\.bin|tokenizer\.json|tokenizer_config\.json|chat_template\.jinja)"
)
_COMPRESSED = (".html", ".css", ".js", ".json", ".txt", ".jinja")  # by hosts


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A file of a site."""

    name: str
    nbytes: int
    gzipped: int  # bytes sent by a host that compresses

    @property
    def part(self) -> str:
        """The part of the site that it belongs to."""
        if self.name.startswith("shard-"):
            return "weights"
        if self.name == MANIFEST or self.name.startswith("variant-"):
            return "plans"
        if self.name.startswith(("tokenizer", "chat_template")) or self.name in ("template.js", "jinja.js"):
            return "tokenizer"
        pages = {f"{page}.js" for page in PAGES}
        return "runner" if self.name.endswith(".js") and self.name not in pages else "page"


@dataclass(frozen=True, slots=True)
class Site:
    """A folder that was written."""

    folder: Path
    title: str
    page: Page
    files: tuple[SiteFile, ...]
    variants: tuple[tuple[str, str], ...]  # a target's name, its file
    check: bool  # whether there is a reference
    note: str = ""  # why the reference is missing


def make_site(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    data: Any = None,
    sizes: Mapping[str, Iterable[int]] | None = None,
    targets: Sequence[Target] | None = None,
    title: str | None = None,
    description: str | None = None,
    page: Name | None = None,
    labels: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    examples: Sequence[str] | None = None,
    check: bool = True,
    progress: Progress | None = None,
) -> Site:
    """Write the folder `output` with a page that runs `model`, a `.pte` or a bundle. Needs no GPU.

    `data`, `sizes` and `targets` are those of `ptegpu.compile`; the default targets are `VARIANTS`. `page` is "chat",
    "image", "task" or "any"; by default the program decides. Image models take `labels`, one for each class, and `mean`
    and `std`, one for each channel, of pixels from 0 to 1. Text models take a `tokenizer`, if it is not next to the
    model; language models also take `examples` of prompts. With `check`, and if there is an adapter and the model is
    small, the folder has a reference for the page to compare with. Raise UnsupportedProgram for a program that needs
    NumPy.
    """
    progress = progress or silent
    path, folder = Path(model), Path(os.path.abspath(output))
    check_output(folder)
    planned_sizes = {name: list(values) for name, values in (sizes or {}).items()}
    source = ProgramSource.of(path, LoadOptions(progress=progress))
    if source.bundle is not None and (data is not None or planned_sizes or targets is not None):
        raise InvalidInput(f"{path} is a bundle: data, sizes and targets were chosen by `ptegpu compile`")
    chosen = choose(source, page)
    _check_options(chosen, labels=labels, mean=mean, std=std, tokenizer=tokenizer, examples=examples)
    settings: dict[str, Any] = {}  # of the page
    files: dict[str, Path] = {}
    if chosen.name == "chat":
        settings["language"], files = language(chosen, source.path, tokenizer, examples)
    if chosen.name == "task":
        settings["task"], files = task(chosen, source.path, tokenizer)
    content = {name: read(file, InvalidInput) for name, file in files.items()}
    bundle = _runnable(source.bundle or _compile(source, data, planned_sizes, targets, chosen, progress), chosen)
    method = default_method(list(bundle.methods[0]))
    if chosen.name == "image":
        settings["image"] = image(chosen, bundle.methods[0][method], labels, mean, std)
    config: dict[str, Any] = {
        "title": shown(title or path.stem),
        "page": chosen.name,
        "method": method,
        "made": f"ptegpu {__version__}",
        "model": {"file": shown(path.name), "bytes": source.file.nbytes},
        **settings,
    }
    progress("Reference", 0, 1)
    reference: SiteCheck | str = "it was not requested"
    if check:
        reference = make_check(bundle, method, chosen.signature, planned_sizes, uniform=chosen.name == "image")
    if isinstance(reference, SiteCheck):
        config["check"] = reference.record
        content[reference.record["file"]] = reference.content
    progress("Reference", 1, 1)
    for name in page_files(FILES, chosen.name, chats=settings.get("language", {}).get("chat", False)):
        content[name] = (FILES / name).read_bytes()
    content["index.html"] = filled(chosen.name, config["title"], description or _description(chosen, config["title"]))
    lines = (f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False, allow_nan=False)}" for k, v in config.items())
    content[SITE] = ("{" + ",\n ".join(lines) + "}\n").encode()
    variants = _write(bundle, content, folder, progress)
    written = tuple(_site_file(f) for f in sorted(folder.iterdir()))
    note = reference if isinstance(reference, str) else ""
    return Site(folder, config["title"], chosen, written, variants, not note, note)


def check_output(folder: Path) -> None:
    """Raise ExportError unless a site can be written to the folder: only another site may be replaced."""
    if folder.exists() and not folder.is_dir():
        raise ExportError(f"{folder} is a file; name a folder for the site")
    if not folder.parent.is_dir():
        raise ExportError(f"{folder} cannot be written: there is no folder {folder.parent}; create it first")
    if not os.access(folder.parent, os.W_OK | os.X_OK):
        raise ExportError(f"{folder} cannot be written: permission denied")
    if not folder.is_dir() or not (names := sorted(os.listdir(folder))):
        return
    if not _is_site(folder):
        raise ExportError(f"{folder} is not empty and was not made by ptegpu: name another folder, or empty it")
    if foreign := next((name for name in names if not _OURS.fullmatch(name)), None):
        raise ExportError(f"{folder / foreign} does not belong to a site: move it away, or name another folder")


def _is_site(folder: Path) -> bool:
    try:
        config = json.loads((folder / SITE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and str(config.get("made")).startswith("ptegpu ")


def _check_options(page: Page, **options: Any) -> None:
    """Raise InvalidInput for an option of another page."""
    pages = {"labels": "image", "mean": "image", "std": "image", "tokenizer": "chat", "examples": "chat"}
    for name, value in options.items():
        if value is not None and pages[name] != page.name and (name, page.name) != ("tokenizer", "task"):
            raise InvalidInput(f"{name} is for the page {pages[name]}; this one is {page.name}: {page.why}")


def _compile(
    source: ProgramSource,
    data: Any,
    sizes: Mapping[str, Sequence[int]],
    targets: Sequence[Target] | None,
    page: Page,
    progress: Progress,
) -> Bundle:
    targets = list(VARIANTS.values()) if targets is None else list(targets)
    finished = 0

    def planning(_plan: str, done: int, of: int) -> None:
        nonlocal finished
        finished += done == 0
        progress("Planning", (finished - 1) * of + done, of * len(targets))

    options: dict[str, Any] = {}
    if page.name == "chat":
        added = plans(source.file, source.card)
        options = {"points": added.points, "also": added.also, "methods": ()}
    elif source.card.kind == TASK and not sizes:
        batches = None if len(source.card.takes) > 1 else [1]  # the page runs one text or picture, or several labels
        options = {"points": {"forward": points_of(source.card, batches)}}
    return plan_program(source.file, data, targets, sizes=sizes or None, progress=planning, **options)


def _runnable(bundle: Bundle, page: Page) -> Bundle:
    """Return the bundle with the methods that a page can run: of a language model the one that generates."""
    methods: tuple[dict[str, CompiledMethod], ...] = tuple(
        {name: o for name, o in outers.items() if (name == GENERATE if page.name == "chat" else o.items)}
        for outers in bundle.methods
    )
    name = bundle.file.path or "the program"
    if not methods[0]:
        raise UnsupportedProgram(f"{name} has no method that computes anything")
    host = (op for o in methods[0].values() for op in o.on_host)
    if numpy := list(dict.fromkeys(op for op in host if op in PORTABLE and op not in PRIMS)):
        listed = ", ".join(numpy)
        raise UnsupportedProgram(f"{name} cannot run in a browser: it needs NumPy for {listed}; use `ptegpu run`")
    return Bundle(bundle.file, bundle.targets, methods)


def _description(page: Page, title: str) -> str:
    kinds = {"chat": "a language model", "image": "an image classifier", "any": "a program"}
    what = f"a model for {page.card.task}" if page.name == "task" else kinds[page.name]
    return f"{title}: {what} that runs on your own GPU, in this page. Nothing that you enter leaves it."


def filled(page: Name, title: str, description: str) -> bytes:
    """Return the HTML of a page."""
    text = (FILES / f"{page}.html").read_text("utf-8")
    values = {"title": title, "description": description}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: html.escape(values[match[1]]), text).encode()


def _write(
    bundle: Bundle, content: Mapping[str, bytes], folder: Path, progress: Progress
) -> tuple[tuple[str, str], ...]:
    """Write everything to a folder beside it, then rename that; return the variants and their files."""
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    old = part.with_suffix(".old")
    progress("Writing", 0, 1)
    try:
        with naming(folder):
            save_web(bundle, part)
            for name, data in content.items():
                (part / name).write_bytes(data)
        check_output(folder)  # again: it may have changed meanwhile
        if folder.is_dir():
            folder.rename(old)
        try:
            part.rename(folder)
        except OSError:
            if old.is_dir():
                old.rename(folder)
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    progress("Writing", 1, 1)
    head = json.loads((folder / MANIFEST).read_bytes())
    return tuple((t.name, v["file"][0]) for t, v in zip(bundle.targets, head["variants"], strict=True))


def _site_file(path: Path) -> SiteFile:
    data = path.read_bytes()
    gzipped = len(gzip.compress(data, 9, mtime=0)) if path.suffix in _COMPRESSED else len(data)
    return SiteFile(path.name, len(data), gzipped)
