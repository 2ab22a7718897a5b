"""Fuzz the readers of files by coverage, with atheris, which is libFuzzer.

    pip install atheris                       # Linux and macOS, Python up to 3.12
    python -m tools.fuzz pte --count 100000   # also: delegate, ptd, bundle
    python -m tools.fuzz pte --corpus build/corpus   # starts with these files, and adds those that reach new code

It starts with the files of tests/data. It exits with 0, or stops at the first error other than `InvalidProgram` and
saves the file that caused it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit("Fuzzing by coverage needs atheris: pip install atheris (Linux and macOS, Python up to 3.12)")

with atheris.instrument_imports(include=["ptegpu.format", "ptegpu.plan"]):
    import ptegpu
    import ptegpu.plan.read  # `Bundle.load` imports it late
    from ptegpu.format import read_program
    from ptegpu.format.delegate import read_delegate
    from ptegpu.format.ptd import read_data
    from ptegpu.plan.bundle import Bundle

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
READERS = {
    "pte": read_program,
    "delegate": lambda content: read_delegate(memoryview(content)),
    "ptd": read_data,
    "bundle": Bundle.load,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--corpus", type=Path, help="a folder for files that reach new code")
    options = parser.parse_args()
    reader = READERS[options.reader]

    def once(content: bytes) -> None:
        try:
            reader(content)
        except ptegpu.InvalidProgram:
            pass

    with tempfile.TemporaryDirectory() as folder:
        corpus = options.corpus or Path(folder)
        corpus.mkdir(parents=True, exist_ok=True)
        for k, content in enumerate(seeds(options.reader)):
            (corpus / f"seed{k}").write_bytes(content)
        limits = [f"-runs={options.count}", "-max_len=65536", "-timeout=10", "-rss_limit_mb=2048"]
        atheris.Setup([sys.argv[0], *limits, str(corpus)], once)
        atheris.Fuzz()


def seeds(reader: str) -> list[bytes]:
    """Return small valid files for the reader."""
    programs = [p.read_bytes() for p in sorted(DATA.glob("*.pte")) if p.stat().st_size <= 1 << 16]
    if reader == "pte":
        return programs
    if reader == "ptd":
        return [p.read_bytes() for p in sorted(DATA.glob("*.ptd"))]
    if reader == "delegate":
        methods = [m for content in programs for m in read_program(content).methods]
        return [bytes(d.blob) for m in methods for d in m.delegates]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"
        bundles = []
        for name in ("mlp.pte", "control.pte"):
            ptegpu.compile(DATA / name).save(path)
            bundles.append(path.read_bytes())
    return bundles


if __name__ == "__main__":
    main()
