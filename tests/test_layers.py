"""The architecture: allowed imports between packages, and imports that need neither a GPU library nor torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from ptegpu.compiler.program import cut_methods, plan_methods
from ptegpu.dtypes import DType
from ptegpu.format import pte
from ptegpu.plan.bundle import Bundle
from ptegpu.plan.target import Target
from ptegpu.portable.families import FAMILIES

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
PACKAGE = SRC / "ptegpu"

# Bottom to top: a module may import from its own row and from the rows above it here.
LAYERS = (
    {"errors", "dtypes", "files", "lazy", "limits", "printing", "progress", "sampling", "sizes", "units"},
    {"format"},
    {"plan"},
    {"kernels"},
    {"graph"},
    {"portable"},
    {"ops"},
    {"passes"},
    {"compiler"},
    {"gpu"},
    {"runtime"},
    {"explain"},
    {"__init__", "models"},
    {"export"},
    {"module"},
    {"site"},
    {"serve"},
    {"cli", "__main__"},
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
IMPORTABLE_ALONE = ("format", "graph", "ops", "kernels", "plan", "compiler", "sizes")
# Allowed imports of the packages that run plans; no operators.
RUNNER_SEES = {"errors", "dtypes", "files", "lazy", "limits", "printing", "progress", "format", "plan", "gpu"}
RUNNER_SEES |= {"__init__"}
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("wgpu", "torch"):
            raise ImportError(f"{name} is blocked: this layer must import without it")

sys.meta_path.insert(0, Blocker())
"""

MACHINE_PATH = re.compile(rb"(?<![\w.~$)}\]-])/(?:work|root|home|Users|opt|mnt)/[\w.]+|[A-Z]:\\Users\\")
CACHE = re.compile(r"/__pycache__/|/\.\w+_cache/")
COMMITTED_FOLDERS = ("src", "tests", "docs", "benchmarks", "examples", "tools", "changelog.d", ".ci")


When = Literal["load", "call", "never"]  # at module level, in a function, under `if TYPE_CHECKING:`


class Import(NamedTuple):
    target: str  # dotted and absolute
    line: int
    when: When

    @property
    def package(self) -> str:
        return self.target.partition(".")[0]


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path, root: Path = SRC) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str, root: Path = SRC) -> bool:
    path = root.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports(path: Path, root: Path = SRC) -> Iterator[Import]:
    package = module_name(path, root).split(".")
    if path.name != "__init__.py":
        package.pop()
    yield from _imports(ast.parse(path.read_text("utf-8")), package, root, "load")


def _imports(node: ast.AST, package: list[str], root: Path, when: When) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, when)
    elif isinstance(node, ast.ImportFrom):
        above = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            yield Import(inner if is_module(inner, root) else base, node.lineno, when)
    elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        for statement in node.body:
            yield from _imports(statement, package, root, "never")
        for statement in node.orelse:
            yield from _imports(statement, package, root, when)
    else:
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from _imports(child, package, root, "call" if inside and when == "load" else when)


def layer(module: str) -> str:
    """Return the name in LAYERS of a dotted module name."""
    return (module.split(".") + ["__init__"])[1]


def goes_up(module: str, target: str) -> bool:
    if target.partition(".")[0] != "ptegpu":
        return False
    return RANK[layer(target)] > RANK[layer(module)]


def violations(breaks: Callable[[str, Import], bool]) -> list[str]:
    """Return `file:line imports target` for every import for which `breaks(module, import)` holds."""
    return [
        f"{path.relative_to(ROOT)}:{imported.line} imports {imported.target}"
        for path in python_files()
        for imported in imports(path)
        if breaks(module_name(path), imported)
    ]


def test_every_module_has_a_layer() -> None:
    assert {layer(module_name(path)) for path in python_files()} <= set(RANK)


def test_imports_go_down_only() -> None:
    assert violations(lambda module, imported: imported.when != "never" and goes_up(module, imported.target)) == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports of modules above the runtime, when they are loaded, have no cycle."""
    above = {name for row in LAYERS[LAYERS.index({"runtime"}) + 1 :] for name in row} - {"__init__"}
    graph = {
        module: {i.target for i in imports(path) if i.when == "load" and i.target.startswith("ptegpu.")} - {module}
        for path in python_files()
        if layer(module := module_name(path)) in above
    }
    while ends := {module for module, targets in graph.items() if not targets & set(graph)}:
        graph = {module: targets for module, targets in graph.items() if module not in ends}
    assert {} == graph


PACKAGES = {"format", "plan", "compiler", "gpu", "runtime"}  # their modules are internal
MOST_INSIDE = 40  # statements that import their modules anyway


def inside() -> set[str]:
    """Return the statements above the runtime that import internal modules of lower packages."""
    above = {name for row in LAYERS[LAYERS.index({"runtime"}) + 1 :] for name in row} - {"__init__"}

    def breaks(module: str, imported: Import) -> bool:
        parts = imported.target.split(".")
        return layer(module) in above and parts[0] == "ptegpu" and len(parts) > 2 and parts[1] in PACKAGES

    return set(violations(breaks))


def test_few_imports_reach_inside() -> None:
    assert len(inside()) <= MOST_INSIDE, inside()


def test_only_gpu_imports_wgpu() -> None:
    engines = ("wgpu", "wgpudawn")
    assert violations(lambda module, imported: imported.package in engines and layer(module) != "gpu") == []


def test_gpu_knows_no_operator() -> None:
    """The packages that run plans import no package that makes plans."""

    def breaks(module: str, imported: Import) -> bool:
        return layer(module) == "gpu" and imported.package == "ptegpu" and layer(imported.target) not in RUNNER_SEES

    assert violations(breaks) == []


def test_gpu_loads_nothing_that_makes_plans() -> None:
    code = (
        "import sys; from ptegpu.gpu import Session; print(*sorted(m for m in sys.modules if m.startswith('ptegpu.')))"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SRC)!r}); {code}"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "ptegpu.gpu.session" in loaded
    makers = ("compiler", "graph", "kernels", "ops", "passes", "portable", "sizes")
    assert [m for m in loaded if layer(m) in makers] == []


def test_a_host_step_of_a_bundle_imports_one_family_of_kernels(tmp_path: Path) -> None:
    path = tmp_path / "median.bundle"
    median().save(path)
    code = (
        f"import sys; sys.path.insert(0, {str(SRC)!r})\n"
        f"import numpy, ptegpu\n"
        f"program = ptegpu.load({str(path)!r})\n"
        f"print(*sorted(sys.modules))\n"
        f"program(numpy.ones(4))\n"
        f"print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    loaded, called = ({m for m in line.split() if m.partition(".")[0] == "ptegpu"} for line in done)
    makers = {"compiler", "kernels", "ops", "passes"}
    assert [m for m in loaded if layer(m) in makers | {"graph", "portable"}] == []
    assert [m for m in called if layer(m) in makers] == []
    assert [f for f in FAMILIES if f"ptegpu.portable.{f}" in called] == ["sort"]
    assert len(called - loaded) <= 10
    assert [m for m in called if layer(m) == "gpu"] == []
    assert len(called) < 40


def median() -> Bundle:
    """Return a program for float64, which no GPU computes with."""
    x, y = pte.FileTensor(DType.F64, (4,), (0,)), pte.FileTensor(DType.F64, (), ())
    call = pte.KernelCall("aten::median.out", (0, 1, 1))
    method = pte.FileMethod("forward", (x, y), (0,), (1,), ((call,),), (), "", "")
    file = pte.ProgramFile(None, 0, 0, (method,), {})
    methods, _ = plan_methods(cut_methods(file), Target())
    return Bundle(file, (Target(),), (methods,))


def test_compiler_imports_no_gpu() -> None:
    assert violations(lambda module, imported: layer(module) == "compiler" and layer(imported.target) == "gpu") == []


def test_a_program_is_compiled_without_wgpu_and_torch(tmp_path: Path) -> None:
    file, saved = ROOT / "tests" / "data" / "control.pte", tmp_path / "control.bundle"
    done = run_blocked(
        f"import ptegpu\n"
        f"bundle = ptegpu.compile({str(file)!r})\n"
        f"bundle.save({str(saved)!r})\n"
        f"print(*bundle.methods[0], len(bundle.methods[0]['forward'].plans))"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "forward 4\n", "")
    assert saved.stat().st_size > 0


def test_only_export_imports_torch_on_load() -> None:
    heavy = {"torch", "torchao", "executorch"}

    def breaks(module: str, imported: Import) -> bool:
        return imported.when == "load" and imported.package in heavy and layer(module) != "export"

    assert violations(breaks) == []


def test_passes_know_no_family_of_operators() -> None:
    """Passes use the registry and the records of nodes, and name no operator."""
    families = {
        f"ptegpu.ops.{path.stem}" for path in (PACKAGE / "ops").glob("*.py") if "\n@op(" in path.read_text("utf-8")
    }
    assert {"ptegpu.ops.matmul", "ptegpu.ops.norm"} <= families
    assert violations(lambda module, imported: layer(module) == "passes" and imported.target in families) == []


def run_blocked(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter where importing wgpu or torch raises."""
    start = f"{BLOCKER}\nsys.path.insert(0, {str(SRC)!r})\n"
    return subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True)


def test_lower_layers_import_without_wgpu_and_torch() -> None:
    done = run_blocked("import ptegpu.format, ptegpu.graph, ptegpu.ops, ptegpu.plan, ptegpu.compiler.program")
    assert (done.returncode, done.stderr) == (0, "")


NAMING = {"ops", "portable", "export"}  # packages that may name operators; below, files that may
NAMING_FILES = {PACKAGE / "graph" / "names.py", PACKAGE / "cli" / "selfcheck.py"}
PATTERNS = {"decomposed", "widened"}  # modules of ops/ that match operators of other families


def operator_names() -> set[str]:
    from ptegpu.ops import REGISTRY
    from ptegpu.portable import PORTABLE, PRIMS

    return {name for name in (*REGISTRY, *PORTABLE, *PRIMS) if "." in name}


def names_operators(text: str, names: set[str]) -> bool:
    """Return whether a word is an operator's name or a prefix: "aten.mm.default", "aten.mm." or "aten."."""
    bases = {name.rpartition(".")[0] + "." for name in names}  # "aten.mm."
    namespaces = {base.partition(".")[0] + "." for base in bases} - {"ptegpu."}  # also a prefix of files and methods
    return text.startswith((*names, *bases, *namespaces)) and " " not in text


def strings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_no_operator_is_named_outside_its_registries() -> None:
    names = operator_names()
    places = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in python_files()
        if path.relative_to(PACKAGE).parts[0] not in NAMING and path not in NAMING_FILES
        for line, text in strings(path)
        if names_operators(text, names)
    ]
    assert places == []


def test_an_operator_is_named_where_it_is_declared() -> None:
    """Facts about an operator are traits of its declaration, not entries of tables in other files."""
    from ptegpu.ops import REGISTRY

    places = [
        f"{path.name}:{line}: {text}"
        for path in sorted((PACKAGE / "ops").glob("*.py"))
        if path.stem not in PATTERNS
        for line, text in strings(path)
        if text in REGISTRY and "." in text and module_name(path) != REGISTRY[text].rule.__module__
    ]
    assert places == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aten.mm.default", True),
        ("aten.mm.", True),
        ("aten.", True),
        ("aten.mm.unknown", True),
        ("et_vk.", True),
        ("ptegpu.latest.default", True),
        ("ptegpu.generate", False),
        ("aten.mm.default becomes mm", False),
        ("add", False),
        ("attention", False),
    ],
)
def test_the_finder_of_operator_names(text: str, expected: bool) -> None:
    assert expected == names_operators(text, operator_names())


@pytest.mark.parametrize("name", IMPORTABLE_ALONE)
def test_each_lower_layer_imports_first(name: str) -> None:
    done = run_blocked(f"import ptegpu.{name}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["wgpu", "torch", "torch.nn"])
def test_the_blocker_blocks(name: str) -> None:
    done = run_blocked(f"import {name}")
    assert f"ImportError: {name.partition('.')[0]} is blocked" in done.stderr


def test_the_import_finder(tmp_path: Path) -> None:
    ops = tmp_path / "ptegpu" / "ops"
    ops.mkdir(parents=True)
    (tmp_path / "ptegpu" / "dtypes.py").touch()
    (ops / "norm.py").write_text(
        "import wgpu.backends\n"
        "from .. import dtypes\n"
        "from ..plan.plan import Plan\n"
        "from . import norm, op\n"
        "if TYPE_CHECKING:\n"
        "    import torch\n"
        "def f():\n"
        "    import torch.nn\n"
    )
    expected = [
        Import("wgpu.backends", 1, "load"),
        Import("ptegpu.dtypes", 2, "load"),
        Import("ptegpu.plan.plan", 3, "load"),
        Import("ptegpu.ops.norm", 4, "load"),
        Import("ptegpu.ops", 4, "load"),
        Import("torch", 6, "never"),
        Import("torch.nn", 8, "call"),
    ]
    assert expected == list(imports(ops / "norm.py", tmp_path))


@pytest.mark.parametrize(
    ("module", "target", "expected"),
    [
        ("ptegpu.format.pte", "ptegpu.errors", False),
        ("ptegpu.format.pte", "ptegpu.graph", True),
        ("ptegpu.graph.graph", "ptegpu.plan", False),
        ("ptegpu.plan.bundle", "ptegpu.graph", True),
        ("ptegpu.ops.norm", "ptegpu.kernels.norm", False),
        ("ptegpu.kernels.norm", "ptegpu.ops.norm", True),
        ("ptegpu.compiler.planner", "ptegpu.gpu.session", True),
        ("ptegpu.compiler.planner", "ptegpu.sizes", False),
        ("ptegpu.plan.bundle", "ptegpu.compiler", True),
        ("ptegpu.runtime.program", "ptegpu", True),
        ("ptegpu.models.door", "ptegpu", False),
        ("ptegpu.models.checkpoints", "ptegpu.export", True),
        ("ptegpu.export.llm", "ptegpu.models.card", False),
        ("ptegpu.site.site", "ptegpu.serve", True),
        ("ptegpu.cli.run", "ptegpu", False),
        ("ptegpu", "ptegpu.runtime", False),
        ("ptegpu.format.pte", "numpy", False),
    ],
)
def test_the_direction_rule(module: str, target: str, expected: bool) -> None:
    assert expected == goes_up(module, target)


def committed_files() -> Iterator[Path]:
    yield from (
        path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"
    )  # .git is a file in worktrees
    for folder in COMMITTED_FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and not CACHE.search(path.as_posix()):
                yield path


def test_no_path_of_one_machine_is_committed() -> None:
    places = [
        f"{path.relative_to(ROOT)}: {match.group().decode()}"
        for path in committed_files()
        for match in MACHINE_PATH.finditer(path.read_bytes())
    ]
    assert places == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"see /" + b"work/main/x", True),
        (b'"/' + b'root/.cache"', True),
        (b"path=/" + b"home/me/file", True),
        (b"C:" + b"\\Users\\me", True),
        (b"https://example.org/" + b"work/x", False),
        (b"docs/" + b"work/x and ~/" + b"work/x", False),
        (b"/usr/share/vulkan/icd.d", False),
    ],
)
def test_the_machine_path_pattern(text: bytes, expected: bool) -> None:
    assert expected == bool(MACHINE_PATH.search(text))


def test_no_two_classes_share_a_name() -> None:
    files: dict[str, list[str]] = {}
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                files.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {} == {name: places for name, places in files.items() if len(places) > 1}
