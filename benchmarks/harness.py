"""The harness of all workloads: ways to run, timing, rows, ceilings, tables.

A workload is a generator of rows. Each row is one way to run one case: ptegpu on an engine at a precision, or a peer
such as PyTorch. A failure is a row with a message, and the next row runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import ptegpu
from ptegpu.errors import NoAdapter
from ptegpu.gpu import Device, Session, device_bytes, measure, open_device
from ptegpu.gpu.measurement import warm
from ptegpu.gpu.timing import Timer, busy
from ptegpu.plan.plan import Plan
from ptegpu.plan.target import Target

ENGINES, PRECISIONS = ("wgpu", "dawn"), ("exact", "fast")
NAMES = {"wgpu": "wgpu-native", "dawn": "Dawn"}
EAGER, COMPILED = "PyTorch eager", "PyTorch compiled"
MORE_IS_BETTER = {"tok/s", "TFLOP/s"}
SHARES = ("copy", "f32", "f16")
COLUMNS = ("figure", "GPU ms", "host ms", *(f"of {name}" for name in SHARES), "dispatches", "MB", "error", "note")
TOLERANCE = {"exact": 1e-3, "fast": 3e-2}  # of a result's scale


class Missing(Exception):
    """A requirement of a measurement is missing on this machine, which is not a failure."""


@dataclass(frozen=True)
class Way:
    """A way to run ptegpu."""

    engine: str
    precision: str

    def __str__(self) -> str:
        return f"{self.engine} {self.precision}"


@dataclass
class Row:
    """One way to run one case. Times are in seconds."""

    workload: str
    case: str
    way: str
    value: float | None = None
    unit: str = ""
    gpu: float | None = None  # seconds in the passes of one run
    host: float | None = None  # seconds of one run in which the GPU does not compute
    nbytes: int | None = None  # that the dispatches of one run access, each byte once
    flops: int | None = None
    dispatches: int | None = None
    memory: int | None = None  # peak bytes on the GPU
    error: float | None = None  # the largest difference from PyTorch, as a share of the result's scale
    tolerance: float | None = None  # of the error, if not that of the precision
    note: str = ""
    peer: bool = False
    missing: str = ""  # why there is nothing to measure here
    failure: str = ""
    of: dict[str, float] = field(default_factory=dict)  # shares of the ceilings
    ratios: dict[str, float] = field(default_factory=dict)  # speedups over each peer in the same run


@dataclass(frozen=True)
class Ceilings:
    """The measured upper bounds of a machine."""

    copy: float  # bytes per second, read and written
    f32: float  # operations per second
    f16: float | None = None  # of cuBLAS, with tensor cores


class Bench:
    """One run of the command: its options, the engines and peers here, and objects that workloads share."""

    def __init__(
        self,
        *,
        quick: bool = False,
        data: Path | None = None,
        device: str = "auto",
        engines: Sequence[str] = ENGINES,
        precisions: Sequence[str] = PRECISIONS,
        seconds: float = 0.5,
        only: Sequence[str] = (),
        compiled: bool = True,
        profile: bool = False,
        console: Console | None = None,
    ) -> None:
        self.quick, self.data, self.adapter, self.only, self.compiled = quick, data, device, only, compiled
        self.profile = profile  # `calls` profiles the host, `batches` the kernels
        self.ways = [Way(engine, precision) for engine in engines for precision in precisions]
        self.seconds = 0.02 if quick else seconds
        self.repeats = 3 if quick else 20
        self.console = console or Console()
        self.resources = ExitStack()  # closed at the end
        self._devices: dict[str, Device | None] = {}
        self._shared: dict[Any, Any] = {}

    def wants(self, case: str) -> bool:
        """Return whether a case was selected."""
        return not self.only or any(text in case for text in self.only)

    # --- engines

    def device(self, engine: str) -> Device:
        """Return the adapter through an engine. Raise Missing without such an engine."""
        if engine not in self._devices:
            try:
                self._devices[engine] = open_device(_number(self.adapter), engine=engine)
            except (NoAdapter, ImportError) as error:
                self.console.print(f"no {NAMES[engine]} here: {_line(error)}", highlight=False, markup=False)
                self._devices[engine] = None
        device = self._devices[engine]
        if device is None:
            raise Missing(f"no {NAMES[engine]} here")
        return device

    def options(self, way: Way) -> dict[str, Any]:
        """Return the options of `ptegpu.load` and `LanguageModel` for a way."""
        self.device(way.engine)
        return {"device": _number(self.adapter), "engine": way.engine, "precision": way.precision}

    def target(self, way: Way) -> Target:
        """Return the target of plans for a way."""
        self.options(way)
        return replace(self.device(way.engine).target, precision=way.precision)

    @property
    def engines(self) -> list[Way]:
        """Return one way per engine, for cases where precision makes no difference."""
        return list({way.engine: way for way in reversed(self.ways)}.values())[::-1]

    def ceilings(self, engine: str) -> Ceilings:
        """Return the ceilings through an engine, measured once per run."""
        return self.shared(("ceilings", engine), lambda: self._ceilings(self.device(engine)))

    def _ceilings(self, device: Device) -> Ceilings:
        peak = measure(device)
        return Ceilings(peak.bandwidth, peak.flops, self.shared("cuBLAS f16", self._cublas) if self.cuda else None)

    def _cublas(self) -> float:
        n, torch = 256 if self.quick else 8192, self.cuda
        a = torch.randn((n, n), device=self.where, dtype=torch.float16)
        return 2 * n**3 / self.cuda_seconds(lambda: a @ a, 10)

    # --- PyTorch

    @cached_property
    def torch(self) -> Any:
        """Return PyTorch, set to plain float32, for reference results; None if it is not installed."""
        try:
            import torch
        except ImportError:
            return None
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        self.resources.enter_context(torch.no_grad())
        return torch

    def need_torch(self) -> None:
        """Raise Missing if PyTorch is not installed."""
        if self.torch is None:
            raise Missing("PyTorch is not installed: it makes the weights and checks results")

    @cached_property
    def cuda(self) -> Any:
        """Return PyTorch if it has a CUDA device, else None. It is timed only there."""
        return self.torch if self.torch is not None and self.torch.cuda.is_available() else None

    @property
    def where(self) -> str:
        """Return PyTorch's device."""
        return "cuda" if self.cuda else "cpu"

    @property
    def pytorch(self) -> str:
        """Return a line about PyTorch on this machine."""
        if not self.cuda:
            return "no CUDA: PyTorch is not timed" + (", only used for reference results" if self.torch else "")
        return f"PyTorch {self.cuda.__version__} on {self.cuda.cuda.get_device_name()}, float32 without TF32"

    def peers(self) -> dict[str, Callable[[Any], Any]]:
        """Return PyTorch's ways by name, each a function that prepares a callable."""
        if not self.cuda:
            return {}
        peers: dict[str, Callable[[Any], Any]] = {EAGER: lambda module: module}
        if self.compiled:
            peers[COMPILED] = lambda module: self.cuda.compile(module, mode="reduce-overhead", dynamic=False)
        return peers

    def cuda_seconds(self, call: Callable[[], Any], calls: int) -> float:
        """Return the GPU time of a call, from several in a row, which hides launches if the GPU is slower."""
        torch = self.cuda
        until = time.perf_counter() + (0.2 if not self.quick else 0)
        while True:
            call()
            torch.cuda.synchronize()
            if time.perf_counter() >= until:
                break
        rounds = []
        for _ in range(5):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(calls):
                call()
            end.record()
            torch.cuda.synchronize()
            rounds.append(begin.elapsed_time(end) / 1e3 / calls)
        return median(rounds)

    def cuda_memory(self) -> int:
        """Return PyTorch's peak of allocated bytes since the last call of this function."""
        peak = int(self.cuda.cuda.max_memory_allocated())
        self.cuda.cuda.reset_peak_memory_stats()
        return peak

    # --- measuring

    def wall(self, call: Callable[[], Any]) -> float:
        """Return the median seconds of a call, measured after a warm-up of the same duration."""
        times: list[float] = []
        for _ in ("warming up", "timing"):
            times = []
            end = time.perf_counter() + self.seconds
            while len(times) < 3 or time.perf_counter() < end:
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
        return median(times)

    def timed(self, device: Device, plan: Plan, inputs: Sequence[Any]) -> tuple[float, list[np.ndarray]]:
        """Return the median GPU seconds of a plan's pass with warm clocks, and its results."""
        with Session(device) as session:
            prepared = session.prepare(plan)
            results = [np.array(r) for r in session.run(prepared, inputs)]
            warm(device)
            timer = Timer(device, each=False)
            with timer.watching([session]):
                for _ in range(self.repeats + 1):
                    session.run(prepared, inputs, read=[])
        return median(sum(s for _, s in busy(run.spans)) for run in timer.runs[1:]), results

    def row(
        self, workload: str, case: str, way: Way | str, figures: Callable[..., Mapping[str, Any]], *args: Any
    ) -> Row:
        """Return a row with the results of `figures(*args)`, or with the reason for a failure."""
        row = Row(workload, case, str(way), peer=isinstance(way, str))
        try:
            for name, value in figures(*args).items():
                setattr(row, name, value)
            if isinstance(way, Way):
                self._finish(row, way)
        except Missing as error:
            row.missing = str(error)
        except Exception as error:  # of any type; the next row must still run
            row.failure = f"{type(error).__name__}: {_line(error)}"
        return row

    def _finish(self, row: Row, way: Way) -> None:
        if row.gpu:
            peak = self.ceilings(way.engine)
            done = (row.nbytes, row.flops, row.flops)
            most = (peak.copy, peak.f32, peak.f16)
            row.of = {name: d / row.gpu / m for name, d, m in zip(SHARES, done, most) if d and m}
        tolerance = row.tolerance or TOLERANCE["exact" if way.precision == "exact" else "fast"]
        if row.error is not None and not row.error <= tolerance:
            row.failure = f"differs from PyTorch by {row.error:.1e} of the result's scale; {tolerance:.0e} is allowed"

    def shared(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return an object that several workloads use, made on first use."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def profiled(self, method: ptegpu.Method, arguments: Sequence[Any]) -> dict[str, Any]:
        """Return the figures of a row from the profile of a call."""
        profile = method.profile(*arguments, repeats=self.repeats)
        return {
            "gpu": profile.pass_seconds,
            "host": profile.host_seconds,
            "nbytes": sum(k.dispatch.nbytes for k in profile.kernels),
            "flops": sum(int(k.dispatch.flops) for k in profile.kernels),
            "dispatches": len(profile.kernels),
            "memory": sum(map(device_bytes, method.plans)),
        }


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """Return the largest difference, relative to the largest expected magnitude."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    if same.all():
        return 0.0
    scale = np.abs(want[np.isfinite(want)]).max(initial=0.0) or 1.0
    return float(np.abs(got[~same] - want[~same]).max() / scale)


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Add to each row of ptegpu its speedups over the peers of its case."""
    peers: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.peer and row.value:
            peers.setdefault((row.case, row.unit), []).append(row)
    for row in rows:
        if not row.peer and row.value:
            for peer in peers.get((row.case, row.unit), ()):
                assert peer.value is not None
                more = row.unit in MORE_IS_BETTER
                row.ratios[peer.way] = row.value / peer.value if more else peer.value / row.value
    return list(rows)


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield comparisons of ways with peers over all cases, if there are several."""
    ratios_by_pair: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        for peer, ratio in row.ratios.items():
            ratios_by_pair.setdefault((row.way, peer), []).append(ratio)
    for (way, peer), ratios in ratios_by_pair.items():
        if len(ratios) > 3:
            mean, faster = geometric_mean(ratios), sum(ratio >= 1 for ratio in ratios)
            yield f"{way}: {mean:.2f} × {peer} over {len(ratios)} cases (geometric mean), {faster} at least as fast"


def table(rows: Sequence[Row]) -> Table:
    """Return a table of rows, ratios first, without empty columns."""
    shown = [_cells(row) for row in rows]
    filled = dict.fromkeys(name for cells in shown for name in cells)
    names = [name for name in filled if name.startswith("×")] + [name for name in COLUMNS if name in filled]
    grid = Table()
    grid.add_column("case", overflow="fold")
    grid.add_column("way")
    for name in names:
        grid.add_column(name, justify="left" if name == "note" else "right", overflow="fold")
    last = ""
    for row, cells in zip(rows, shown):
        if last and row.case != last:
            grid.add_section()
        grid.add_row(row.case if row.case != last else "", row.way, *(cells.get(name, "") for name in names))
        last = row.case
    return grid


def _cells(row: Row) -> dict[str, str]:
    cells = {f"× {peer}": f"{ratio:.2f}" for peer, ratio in row.ratios.items()}
    if row.value is not None:
        cells["figure"] = f"{_short(row.value)} {row.unit}"
    for name, seconds in (("GPU ms", row.gpu), ("host ms", row.host)):
        if seconds is not None:
            cells[name] = f"{seconds * 1e3:.3f}"
    cells |= {f"of {name}": f"{share:.0%}" for name, share in row.of.items()}
    if row.dispatches is not None:
        cells["dispatches"] = str(row.dispatches)
    if row.memory is not None:
        cells["MB"] = f"{row.memory / 1e6:.0f}"
    if row.error is not None:
        cells["error"] = f"{row.error:.0e}"
    note = (row.failure and f"FAILED: {row.failure}") or row.missing or row.note
    return cells | ({"note": note} if note else {})


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def save(path: Path, bench: Bench, rows: Iterable[Row]) -> None:
    """Write all rows so far as JSON, with the machine."""
    engines = {w.engine: None for w in bench.ways}
    machine: dict[str, Any] = {}
    for engine in engines:
        try:
            machine[engine] = {
                "adapter": str(bench.device(engine).info),
                "ceilings": asdict(bench.ceilings(engine)),
            }
        except Exception as error:
            machine[engine] = _line(error)
    machine["PyTorch"] = bench.pytorch
    document = {"quick": bench.quick, "machine": machine, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def lines(bench: Bench) -> Iterator[str]:
    """Yield lines about the adapters and their ceilings."""
    for engine in dict.fromkeys(w.engine for w in bench.ways):
        try:
            peak = bench.ceilings(engine)
            f16 = f", f16 {peak.f16 / 1e12:.3g} TFLOP/s (cuBLAS)" if peak.f16 else ""
            name = bench.device(engine).info
            yield f"{engine}: {name}: copy {peak.copy / 1e12:.3g} TB/s, f32 {peak.f32 / 1e12:.3g} TFLOP/s{f16}"
        except Missing:
            pass  # it was reported before
        except Exception as error:
            yield f"{engine}: {_line(error)}"
    yield bench.pytorch


def _number(device: str) -> str | int:
    return int(device) if device.isdigit() else device


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
