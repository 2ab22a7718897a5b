"""The packages of a release, built, installed into empty environments, and tried.

    make release-check                # wheel, sdist and npm package
    make release-check ARGS="npm"     # one of them

The wheel generates a story and checks an adapter, without the checkout. The sdist installs and its tests are collected.
The npm package goes into a fresh Vite project, which builds with and without the optional packages. Needs the network.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
import venv
from collections.abc import Callable
from pathlib import Path

from tools.lock import ROOT, requirements

VITE = "vite@8"
PEERS = ("@huggingface/tokenizers", "@huggingface/jinja")
PAGE = '<!doctype html><script type="module" src="/main.js"></script>\n'
PROGRAM = 'import { load } from "ptegpu";\nload("site/").then((program) => console.log(program.info));\n'
WORKER = 'import { connect } from "ptegpu/worker";\nconnect("site/").then((remote) => console.log(remote.info));\n'
TEXT = 'import { loadLanguageModel } from "ptegpu/llm";\nloadLanguageModel("site/").then(console.log);\n'


def run(*command: str | Path, cwd: Path, shown: int = 3) -> str:
    """Run a command, print it with the end of its output, and return the output; end the check if it fails."""
    print(f"$ {' '.join(map(str, command))}", flush=True)
    plain = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=plain, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    failed = done.returncode != 0
    lines = done.stdout.strip().splitlines()
    print(textwrap.indent("\n".join(lines if failed else lines[-shown:]), "  "), flush=True)
    if failed:
        raise SystemExit(f"exit status {done.returncode}")
    return done.stdout


def environment(folder: Path) -> Path:
    """Create an empty environment; return its folder of programs."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin")


def build(target: str, folder: Path) -> Path:
    """Build the wheel or the sdist."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder, cwd=ROOT)
    (package,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    print(f"  {package.name}: {package.stat().st_size / 2**20:.1f} MiB")
    return package


def check_wheel(folder: Path) -> None:
    """Install the wheel with its extra `llm`, and run the bundled models from an empty folder."""
    wheel = build("wheel", folder / "dist")
    programs = environment(folder / "venv")
    run(programs / "pip", "install", "-qq", f"{wheel}[llm]", cwd=folder)
    run(programs / "pip", "check", cwd=folder)
    (empty := folder / "empty").mkdir()
    run(programs / "ptegpu", "doctor", cwd=empty)
    story = run(programs / "ptegpu", "demo", "--prompt", "The Wolf", "--seed", "2", "--max-tokens", "40", cwd=empty)
    if "The Wolf" not in story:
        raise SystemExit("the demo did not print its prompt")
    run(programs / "ptegpu", "demo", "digits", cwd=empty)
    run(programs / "ptegpu", "web", "demo", "-o", "site", cwd=empty)


def check_sdist(folder: Path) -> None:
    """Install the sdist with the tools of the quick tests; collect its tests, and run some of them."""
    sdist = build("sdist", folder / "dist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    tree = folder / sdist.name.removesuffix(".tar.gz")
    programs = environment(folder / "venv")
    needed = [str(r) for r in requirements(["quick"])]
    run(programs / "pip", "install", "-qq", tree, *needed, "-c", tree / "constraints.txt", cwd=folder)
    quick = ("-q", "-p", "tests.torchless", "-m", "not slow and not torch and not heavy")
    run(programs / "python", "-m", "pytest", *quick, "--collect-only", "tests", cwd=tree, shown=1)
    run(programs / "python", "-m", "pytest", *quick, "tests/format", cwd=tree, shown=1)


def check_npm(folder: Path) -> None:
    """Build a fresh Vite project of each entry of the package: first without, then with the optional packages."""
    if shutil.which("npm") is None:
        raise SystemExit("npm is not installed")
    run("npm", "ci", "--ignore-scripts", "--silent", cwd=ROOT / "web")
    package = run("npm", "pack", "--silent", "--pack-destination", folder, cwd=ROOT / "web").split()[-1]
    (project := folder / "project").mkdir()
    (project / "package.json").write_text('{ "name": "fresh", "private": true, "type": "module" }\n')
    (project / "index.html").write_text(PAGE)
    run("npm", "install", "--silent", "--ignore-scripts", folder / package, cwd=project)
    run("npm", "install", "--silent", "--save-dev", VITE, cwd=project)

    def bundle(source: str) -> None:
        (project / "main.js").write_text(source)
        run(project / "node_modules" / ".bin" / "vite", "build", cwd=project, shown=6)

    bundle(PROGRAM)
    bundle(WORKER)
    bundle(TEXT)
    run("npm", "install", "--silent", "--ignore-scripts", *PEERS, cwd=project)
    bundle(TEXT)


CHECKS: dict[str, Callable[[Path], None]] = {"wheel": check_wheel, "sdist": check_sdist, "npm": check_npm}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"{', '.join(CHECKS)}; all by default")
    packages = parser.parse_args().packages or list(CHECKS)
    if unknown := [name for name in packages if name not in CHECKS]:
        parser.error(f"unknown package {unknown[0]!r}: expected {', '.join(CHECKS)}")
    started = time.monotonic()
    for name in packages:
        print(f"== {name}", flush=True)
        with tempfile.TemporaryDirectory(prefix=f"ptegpu-{name}-") as folder:
            CHECKS[name](Path(folder).resolve())
    print(f"All checks passed in {time.monotonic() - started:.0f} s.")


if __name__ == "__main__":
    main()
