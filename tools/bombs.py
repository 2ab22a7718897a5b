"""Loads and calls every program of a folder, each in a process of its own, and says what it took and how it ended.

    python -m tools.bombs FOLDER                    # all of its .pte files and bundles
    python -m tools.bombs FOLDER --only split       # those with this in their names
    python -m tools.bombs FOLDER --limits "" --end 60    # with the default limits, each for at most a minute
    python -m tools.bombs FOLDER --json table.json

Each must succeed or raise a `PtegpuError` within a second of CPU time, and with no more memory than 64 MiB and four
times the file's size above that of a process that has loaded a small program and run it. Each process has one thread of
its own and none of the driver's, so that CPU time is work. Exits with 1 if one did not.
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
SPACE = 16 << 30  # bytes of addresses after which a process gets no more
STRICT = "memory=32M folded=8M nodes=2000 items=50000 pipelines=128 instructions=1000000 seconds=0.6"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--limits", default=STRICT, help="what Limits to load with; empty for the defaults")
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
    """What became of a file in a process of its own."""
    command = [sys.executable, "-m", "tools.bombs", str(file), "--one", "--limits", limits, "--end", str(seconds)]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        environment = {**os.environ, "LP_NUM_THREADS": "0"}
        pid = subprocess.Popen(command, stdout=out, stderr=err, cwd=ROOT, env=environment).pid
        _, status, used = os.wait4(pid, 0)
        texts = [(f.seek(0), f.read())[1] for f in (out, err)]
    said = (texts[1].strip().splitlines() or [""])[-1]
    try:
        found: dict[str, Any] = json.loads(texts[0].splitlines()[-1])
    except (IndexError, ValueError):
        spent, memory = used.ru_utime + used.ru_stime, used.ru_maxrss << 10
        end = f"killed after {seconds} s" if os.WIFSIGNALED(status) else f"exit {os.waitstatus_to_exitcode(status)}"
        return {"seconds": spent, "memory": memory, "end": end, "text": said, "typed": False}
    if said:
        found |= {"typed": False, "text": f"printed {said!r}; {found['text']}"}
    return found


def one(file: Path, limits: str, end: int) -> dict[str, Any]:
    """What loading and calling it takes, above what this process took already."""
    import ptegpu

    with ptegpu.load(SMALL) as program:
        call(program)
    ptegpu.limits.clock = time.process_time  # which is what is measured here, however busy the machine is
    given = {"limits": ptegpu.Limits.parse(limits.split())} if limits else {}
    resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))
    before, base = time.process_time(), peak(reset=True)
    resource.setrlimit(resource.RLIMIT_CPU, (int(before) + end + 1, int(before) + end + 2))
    how, text, typed = "ok", "", True
    try:
        with ptegpu.load(file, **given) as program:
            call(program)
    except ptegpu.PtegpuError as e:
        how, text = type(e).__name__, str(e)
    except BaseException as e:
        how, text, typed = type(e).__name__, str(e), False
    spent = time.process_time() - before
    return {"seconds": spent, "memory": max(0, peak() - base), "end": how, "text": text[:400], "typed": typed}


def call(program: Any) -> None:
    """Every method, with zeros: of as many elements as allowed, or of few where that is many."""
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
    """The most bytes that were resident, from now on if `reset`."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    main()
