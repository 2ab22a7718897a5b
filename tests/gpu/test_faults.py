"""Faults inside a call of the library, a process that forks, threads of ours: see `tools/faults.py` for all faults."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ptegpu.gpu import threads

ROOT = Path(__file__).resolve().parents[2]

FORK = """
import multiprocessing, os, sys, time
import numpy as np
import ptegpu

def child(use):
    began = time.process_time()
    try:
        use()
        print("works")
    except ptegpu.DeviceLost as error:
        print(str(error).partition(",")[0], time.process_time() - began < 1)
    sys.stdout.flush()

def load():
    return ptegpu.load("src/ptegpu/demo/digits.pte")

def forked(use):
    if not os.fork():
        child(use)
        sys.exit(5)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)

image = np.zeros((1, 8, 8), np.float32)
forked(lambda: load()(image))
program = load()
expected = program(image)
for use in (lambda: program(image), program.reset, load):
    forked(use)
process = multiprocessing.get_context("fork").Process(target=child, args=(lambda: program(image),))
process.start()
process.join()
print(process.exitcode, np.array_equal(expected, program(image)))
"""
REFUSED = "this process was forked from one that had started the GPU True"


def run(*command: str) -> list[str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environ = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environ, cwd=ROOT, timeout=90)
    assert (0, "") == (done.returncode, done.stderr), done.stdout
    return done.stdout.splitlines()


def test_a_fault_at_some_calls_of_the_library() -> None:
    assert re.fullmatch(r"(wgpu|dawn): \d\d+ faults, 0 wrong", run("-m", "tools.faults", "--every", "19")[-1])


def test_a_process_that_is_forked_works_before_the_first_load_and_is_refused_after_it() -> None:
    quiet = ("-W", "ignore:This process:DeprecationWarning")  # Python 3.12 warns of a fork with threads
    assert ["works", "5", *[REFUSED, "5"] * 3, REFUSED, "0 True"] == run(*quiet, "-c", FORK)


def test_jobs_give_results_and_errors_and_are_cancelled_before_they_begin() -> None:
    pool = threads.Pool(1)
    first = threads.Lock()
    with first:
        waits = pool.begin(lambda: first.acquire() and "done")
        later = pool.begin(lambda: 1 / 0)
        assert later.cancel()
        fails = pool.begin(lambda: 1 / 0)
        assert not waits.done
    assert "done" == waits.result()
    assert not waits.cancel()
    with pytest.raises(ZeroDivisionError):
        fails.result()
    assert not later.done
    assert [1, 4, 9] == list(pool.in_turn(lambda n: n * n, [1, 2, 3]))
    assert "inside" == pool.do(lambda: pool.do(lambda: "inside"))


def test_a_thread_that_waits_is_woken() -> None:
    wake, heard = threads.Wake(), []

    def listen() -> None:
        with wake:
            while not heard:
                wake.wait()

    listening = threads.start_thread(listen)
    with wake:
        wake.notify()
        wake.notify()
    with wake:
        heard.append(1)
        wake.notify()
    listening.wait()
