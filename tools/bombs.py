"""Load and call every program of a folder, each in a process of its own; report the resources used and the outcome.

    python -m tools.bombs FOLDER                    # all of its .pte files and bundles
    python -m tools.bombs FOLDER --only split       # those with this in their names
    python -m tools.bombs FOLDER --limits "" --end 60    # with the default limits, each for at most a minute
    python -m tools.bombs FOLDER --json table.json

Each must succeed or raise a `PtegpuError` within a second of CPU time. Beyond the memory of a process that has loaded
and run a small program, it may use 64 MiB plus four times the file's size. Each process has one thread of its own and
none of the driver's, so CPU time is work. Exit with 1 if one exceeds the bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SMALL = ROOT / "tests" / "data" / "cnn.pte"
SECONDS, MEMORY, PER_BYTE = 1.0, 64 << 20, 4
SPACE = 16 << 30  # bytes of address space, at most
STRICT = "memory=32M folded=8M nodes=2000 items=50000 pipelines=128 instructions=1000000 seconds=0.6"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--limits", default=STRICT, help="Limits to load with; empty for the defaults")
    parser.add_argument("--end", type=int, default=10, help="seconds of CPU time after which a process is ended")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.folder, options.limits, options.end)))
        return
    files = sorted(f for f in options.folder.iterdir() if f.suffix in (".pte", ".bundle") and options.only in f.name)
    rows = []
    for file in files:
        rows.append({"file": file.name, "bytes": file.stat().st_size, **apart(file, options.end, options.limits)})
        print(shown(rows[-1]), flush=True)
    bad = [r["file"] for r in rows if not fine(r)]
    kinds: dict[str, int] = {}
    for r in rows:
        kinds[r["end"]] = kinds.get(r["end"], 0) + 1
    print(f"{len(rows)} files, {len(bad)} outside the bounds: " + ", ".join(f"{n} {k}" for k, n in kinds.items()))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    sys.exit(1 if bad else 0)


def fine(row: dict[str, Any]) -> bool:
    return row["typed"] and row["seconds"] <= SECONDS and row["memory"] <= MEMORY + PER_BYTE * row["bytes"]


def shown(row: dict[str, Any]) -> str:
    mark = "  " if fine(row) else "! "
    figures = f"{row['seconds']:6.2f} s {row['memory'] / 2**20:7.1f} MiB"
    return f"{mark}{row['file']:36} {row['bytes']:>8,} B {figures}  {row['end']}: {row['text'][:150]}"


def apart(file: Path, seconds: int, limits: str) -> dict[str, Any]:
    """Load a file in a process of its own, and return its row of the table."""
    command = [sys.executable, "-m", "tools.bombs", str(file), "--one", "--limits", limits, "--end", str(seconds)]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        environment = {**os.environ, "LP_NUM_THREADS": "0"}
        pid = subprocess.Popen(command, stdout=out, stderr=err, cwd=ROOT, env=environment).pid
        _, status, used = os.wait4(pid, 0)
        texts = [(f.seek(0), f.read())[1] for f in (out, err)]
    error = (texts[1].strip().splitlines() or [""])[-1]
    try:
        row: dict[str, Any] = json.loads(texts[0].splitlines()[-1])
    except (IndexError, ValueError):
        spent, memory = used.ru_utime + used.ru_stime, used.ru_maxrss << 10
        end = f"killed after {seconds} s" if os.WIFSIGNALED(status) else f"exit {os.waitstatus_to_exitcode(status)}"
        return {"seconds": spent, "memory": memory, "end": end, "text": error, "typed": False}
    if error:
        row |= {"typed": False, "text": f"printed {error!r}; {row['text']}"}
    return row


def one(file: Path, limits: str, end: int) -> dict[str, Any]:
    """Load and call a program; return the resources used beyond those of this process before."""
    import ptegpu

    with ptegpu.load(SMALL) as program:
        call(program)
    ptegpu.limits.clock = time.process_time  # the measured time, independent of other load
    options = {"limits": ptegpu.Limits.parse(limits.split())} if limits else {}
    resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))
    before, base = time.process_time(), peak(reset=True)
    resource.setrlimit(resource.RLIMIT_CPU, (int(before) + end + 1, int(before) + end + 2))
    outcome, text, typed = "ok", "", True
    try:
        with ptegpu.load(file, **options) as program:
            call(program)
    except ptegpu.PtegpuError as e:
        outcome, text = type(e).__name__, str(e)
    except BaseException as e:
        outcome, text, typed = type(e).__name__, str(e), False
    spent = time.process_time() - before
    return {"seconds": spent, "memory": max(0, peak() - base), "end": outcome, "text": text[:400], "typed": typed}


def call(program: Any) -> None:
    """Call every method with zeros of the largest sizes, or of small sizes if the largest are too large."""
    import numpy as np

    for name in program.methods:
        method = program.method(name)
        arguments: list[Any] = []
        for spec in method.inputs:
            if spec.shape is None:
                arguments.append(0 if spec.dtype == "int" and spec.value is None else spec.value)
                continue
            shape = spec.shape if np.prod(spec.shape, dtype=float) < 1e6 else tuple(min(n, 2) for n in spec.shape)
            arguments.append(np.zeros(shape, np.uint16 if spec.dtype == "bfloat16" else spec.dtype))
        method.execute(arguments)


def peak(reset: bool = False) -> int:
    """Return the peak of resident bytes; `reset` starts a new measurement."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    main()
