"""From the start of a process to the first token of the bundled language model: from its `.pte` and from a bundle.

    python benchmarks/start.py [--rounds 5] [--device auto]

Every round starts a fresh process for each, in turns. The time is from before the interpreter starts until the first
token is there, imports included. The bundle is compiled and saved for the adapter at hand first; what drivers keep on
disk is warm for both after a round that does not count.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path

from ptegpu.gpu import open_device
from ptegpu.llm.compiling import compile as compile_llm

PROMPT = [5, 9, 2]
CODE = """
import sys, time
began = float(sys.argv[1])
from ptegpu.llm import LanguageModel
imported = time.time()
device = int(sys.argv[3]) if sys.argv[3].isdigit() else sys.argv[3]
model = LanguageModel(sys.argv[2], device)
ready = time.time()
(token,) = model.generate({prompt}, max_tokens=1, temperature=0).tokens
print(imported - began, ready - imported, time.time() - ready, token)
"""


def start(path: Path, device: str) -> tuple[list[float], int]:
    """Seconds of one process for importing, loading and the first token; and that token."""
    code = CODE.format(prompt=PROMPT)
    command = [sys.executable, "-c", code, str(time.time()), str(path), device]
    *seconds, token = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return [float(s) for s in seconds], int(token)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    program = Path(str(files("ptegpu") / "demo" / "tales.pte"))
    target = open_device(int(options.device) if options.device.isdigit() else options.device).target
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "tales.bundle"
        compile_llm(program, targets=target).save(bundle)
        seen: dict[Path, list[list[float]]] = {program: [], bundle: []}
        tokens = set()
        for round in range(options.rounds + 1):
            for path, times in seen.items():
                seconds, token = start(path, options.device)
                tokens.add(token)
                times += [seconds] if round else []
    if len(tokens) != 1:
        raise SystemExit(f"the first tokens differ: {tokens}")
    print(f"{target.name}, medians of {options.rounds} processes; ms")
    print(f"{'':10}{'import':>8}{'load':>8}{'token':>8}{'whole':>8}")
    whole = []
    for name, times in zip((".pte", "bundle"), seen.values()):
        parts = [statistics.median(column) * 1e3 for column in zip(*times)]
        whole.append(statistics.median(sum(row) for row in times) * 1e3)
        print(f"{name:10}" + "".join(f"{ms:8.0f}" for ms in (*parts, whole[-1])))
    print(f"{'ratio':10}{whole[1] / whole[0]:32.2f}")


if __name__ == "__main__":
    main()
