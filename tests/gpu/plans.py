"""Little plans written by hand, and the kernels they use: what the tests of `gpu/` run."""

from __future__ import annotations

from dataclasses import replace
from struct import pack

from ptegpu.dtypes import DType
from ptegpu.plan.plan import Binding, Buffer, Choice, Copy, Expr, Input, Kernel, Plan, PlannedDispatch, Port, fixed

N = 20  # elements of most tensors here: more than a vec4, no multiple of 16
NBYTES = 80

ADD = Kernel(
    "add",
    """
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < arrayLength(&y)) { y[id.x] = a[id.x] + b[id.x]; }
}
""",
    ("read", "read", "write"),
    64,
)

SCALE = Kernel(  # y = x × the f32 in the parameters
    "scale",
    """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> factor: vec4f;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < arrayLength(&y)) { y[id.x] = x[id.x] * factor.x; }
}
""",
    ("read", "write", "uniform"),
    64,
)

FILL = Kernel(  # y = its own index in a grid of two dimensions, plus the first symbolic int
    "fill",
    """
@group(0) @binding(0) var<storage, read_write> y: array<i32>;
@group(0) @binding(1) var<uniform> syms: vec4i;
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(num_workgroups) groups: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = (group.y * groups.x + group.x) * 64u + lane;
    if (i < arrayLength(&y)) { y[i] = i32(i) + syms.x; }
}
""",
    ("write", "uniform"),
    64,
)


def f32(name: str, buffer: int, shape: tuple[int, ...] = (N,)) -> Port:
    return Port(name, buffer, DType.F32, shape)


def whole(*buffers: int) -> tuple[Binding, ...]:
    return tuple(Binding(buffer, 0, NBYTES) for buffer in buffers)


def add() -> Plan:
    """y = a + b"""
    return fixed(
        "add",
        (Buffer("a", NBYTES, "input"), Buffer("b", NBYTES, "input"), Buffer("y", NBYTES, "temp")),
        (ADD,),
        (PlannedDispatch(0, whole(0, 1, 2), (1, 1), "y"),),
        (),
        (f32("a", 0), f32("b", 1)),
        (f32("y", 2),),
        b"",
    )


def chain(length: int = 3) -> Plan:
    """x → x + w → … → x + length × w, each in its own buffer; the last two are outputs."""
    blob = pack(f"{N}f", *range(N))
    temps = tuple(Buffer(f"t{n}", NBYTES, "temp") for n in range(length))
    return fixed(
        "chain",
        (Buffer("x", NBYTES, "input"), Buffer("w", NBYTES, "constant", 0), *temps),
        (ADD,),
        tuple(PlannedDispatch(0, whole(0 if n == 0 else n + 1, 1, n + 2), (1, 1), f"t{n}") for n in range(length)),
        (),
        (f32("x", 0),),
        (f32("before", length), f32("last", length + 1)),
        b"",
        blobs=(blob,),
    )


def scale(factors: tuple[float, ...] = (3.0,), name: str = "params") -> Plan:
    """y = x × every factor in turn; each factor is a block of parameters."""
    blocks = b"".join(pack("4f", factor, 0, 0, 0).ljust(256, b"\0") for factor in factors)
    temps = tuple(Buffer(f"y{n}", NBYTES, "temp") for n in range(len(factors)))
    params = len(factors) + 1
    return fixed(
        "scale",
        (Buffer("x", NBYTES, "input"), *temps, Buffer(name, len(blocks), "params")),
        (SCALE,),
        tuple(
            PlannedDispatch(0, (*whole(n, n + 1), Binding(params, n * 256, 16)), (1, 1), f"y{n}")
            for n in range(len(factors))
        ),
        (),
        (f32("x", 0),),
        (f32("y", len(factors)),),
        blocks,
    )


def accumulate(first: bytes | None = None) -> Plan:
    """total = total + x, a state that the run writes back and returns."""
    return fixed(
        "accumulate",
        (
            Buffer("x", NBYTES, "input"),
            Buffer("total", NBYTES, "state", None if first is None else 0),
            Buffer("next", NBYTES, "temp"),
        ),
        (ADD,),
        (PlannedDispatch(0, whole(0, 1, 2), (1, 1), "next"),),
        (Copy(2, 1, NBYTES),),
        (f32("x", 0),),
        (f32("total", 1),),
        b"",
        blobs=() if first is None else (first,),
    )


def weighted(*names: str) -> Plan:
    """y = the sum of two constants, of which the k-th is the numbers from k × 100."""
    blobs = tuple(pack(f"{N}f", *range(k * 100, k * 100 + N)) for k in (0, 1))
    constants = tuple(Buffer(name, NBYTES, "constant", k) for k, name in enumerate(names))
    return fixed(
        "weighted",
        (*constants, Buffer("y", NBYTES, "temp")),
        (ADD,),
        (PlannedDispatch(0, whole(0, 1, 2), (1, 1), "y"),),
        outputs=(f32("y", 2),),
        blobs=blobs,
    )


STATES = Buffer("p", NBYTES, "state", 0), Buffer("q", NBYTES, "state", 1)
FIRST = pack("2f", 1, 2), pack("3f", 3, 4, 5)  # of p and q; the rest is zeros


def summed() -> Plan:
    """y = p + q, states that the plan only reads."""
    plan = weighted("p", "q")
    return replace(plan, name="summed", buffers=(*STATES, *plan.buffers[2:]), blobs=FIRST)


def stored() -> Plan:
    """p = x"""
    buffers = (*STATES, Buffer("x", NBYTES, "input"))
    return fixed("stored", buffers, (), (), (Copy(2, 0, NBYTES),), (f32("x", 2),), (f32("p", 0),), blobs=FIRST)


def moved(by: str = "dispatch") -> Plan:
    """q = p + x, between states that `summed` has too, by a dispatch or a copy (x is 0 then)."""
    dispatches = (PlannedDispatch(0, whole(2, 0, 1), (1, 1), "q"),) if by == "dispatch" else ()
    buffers = (*STATES, Buffer("x", NBYTES, "input"))
    copies = (Copy(0, 1, NBYTES),) if by == "copy" else ()
    return fixed("moved", buffers, (ADD,), dispatches, copies, (f32("x", 2),), (f32("q", 1),), blobs=FIRST)


def fill(elements: int, grid: tuple[int, int]) -> Plan:
    """y[i] = i + a symbolic int, which is the plan's only input, over a grid of two dimensions."""
    nbytes = -(-elements * 4 // 16) * 16
    plan = fixed(
        "fill",
        (Buffer(f"y{elements}", nbytes, "temp"), Buffer("syms", 16, "syms")),
        (FILL,),
        (PlannedDispatch(0, (Binding(0, 0, nbytes), Binding(1, 0, 16)), grid, "y"),),
        outputs=(Port("y", 0, DType.I32, (elements,)),),
    )
    families = (replace(plan.families[0], words=(Expr(0),)),)
    return replace(plan, inputs=(Input("s"),), families=families, rows=(("int", 0, 0),))


def move(dtype: DType, shape: tuple[int, ...], nbytes: int) -> Plan:
    """y = x, by a copy: no kernel at all."""
    moved = -(-Port("x", 0, dtype, shape).nbytes // 4) * 4
    return fixed(
        "move",
        (Buffer("x", nbytes, "input"), Buffer("y", nbytes, "temp")),
        (),
        (),
        (Copy(0, 1, moved),),
        (Port("x", 0, dtype, shape),),
        (Port("y", 1, dtype, shape),),
        b"",
    )


def dispatching(plan: Plan, *dispatches: PlannedDispatch) -> Plan:
    """The plan with these dispatches instead."""
    (family,) = plan.families
    return replace(plan, families=(replace(family, steps=tuple((Choice((), (d,)),) for d in dispatches)),))


def giving(plan: Plan, *outputs: Port) -> Plan:
    """The plan with these outputs instead."""
    (family,) = plan.families
    return replace(plan, families=(replace(family, outputs=outputs),))
