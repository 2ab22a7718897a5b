"""A traced program to `.pte` bytes through the Vulkan/WebGPU partitioner, and an account of what became of it."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves, tree_structure, treespec_dumps
from torch.utils._sympy.value_ranges import bound_sympy

from ..errors import ExportError
from ..format import KernelCall, Tensor, read_program
from ..format.delegate import read_delegate
from ..graph.names import functional
from .backend import (
    EdgeCompileConfig,
    VulkanPartitioner,
    VulkanSupportedOperators,
    admit_packed_weights,
    cache_patterns,
    keep_unread_inputs,
    ops,
    quiet,
    to_edge_transform_and_lower,
    torch,
    widen_symbols,
)
from .causes import explained, root_cause
from .constants import (
    WIDE,
    PrepareConstants,
    copy_shared_values,
    drop_unread,
    keep_written_parameters,
    own_constants,
)

NO_LIMITS = (2**31 - 1,) * 3
TO_THE_END = 2**63 - 1  # the end of a slice that has none
BEYOND = "it takes an int64 constant beyond 32 bits, which partitions do not hold"
UNREAD = "it writes an input without reading it"
FACTORS = "it has alpha or beta, which ExecuTorch loses in partitions"
FORWARD = "forward"  # the method that every program has
SCALES = "choose_qparams"  # in the names of operators that choose how activations are rounded in a call
FLOATS = (
    "{} of {} activations that the module rounds to 8 bits stay floats: for them, partitions have operators with "
    "weights in 8 bits alone. Without partitions (--no-delegate, delegate=False), all are rounded"
)
REASONS = {"no operator implementation": "the partitioner has no such operator"}

Programs: TypeAlias = ExportedProgram | Mapping[str, ExportedProgram]  # one, or several that become methods


class CannotTrace(ExportError):
    """PyTorch fails on a module."""


class CannotLower(ExportError):
    """ExecuTorch fails on a traced program."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a method is made of: the module, inputs to trace it with, and which dimensions may change."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    dynamic_shapes: Any = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outside:
    """An operator that no partition took. ptegpu runs it all the same, on the GPU where it can."""

    operator: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lowered:
    data: bytes  # the `.pte`
    partitions: int
    delegated: Counter[str] = field(default_factory=Counter)  # operators in partitions
    outside: tuple[Outside, ...] = ()
    bounds: tuple[tuple[int, ...], ...] = ()  # the largest shape of each tensor input
    written: tuple[int, ...] = ()  # which inputs of `forward` the program writes: its first outputs, in this order
    kept: tuple[str, ...] = ()  # buffers that it writes
    notes: tuple[str, ...] = ()


def trace(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
) -> ExportedProgram:
    """`torch.export`, quietly; what it cannot do is an `ExportError` with PyTorch's words and the user's lines."""
    with quiet(), redirect_stderr(io.StringIO()), _attention_in_parts(), _in_eval_mode(module):
        try:  # with nothing on stderr, where PyTorch prints the graph it had so far
            program = torch.export.export(module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
        except Exception as e:
            raise CannotTrace(*explained("PyTorch cannot trace this module", e)) from e
    drop_unread(program, (InputKind.BUFFER,))  # which ExecuTorch would store, unlike parameters
    return program


@contextmanager
def _in_eval_mode(module: torch.nn.Module) -> Iterator[None]:
    """In eval mode; afterwards each part has the mode that it had."""
    training = [m for m in module.modules() if m.training]
    with suppress(NotImplementedError):  # of a module that was traced before, as quantizing does
        module.eval()
    try:
        yield
    finally:
        for m in training:
            m.training = True


@contextmanager
def _attention_in_parts() -> Iterator[None]:
    """Without the operators that compute a whole layer, which `nn.TransformerEncoder` takes where gradients are off."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def ranges(program: ExportedProgram) -> list[list[tuple[int, int]]]:
    """The smallest and the largest size of each dimension of each tensor input."""
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    inputs = [values.get(name) for name in program.graph_signature.user_inputs if isinstance(name, str)]
    return [[_range(d, program) for d in v.shape] for v in inputs if isinstance(v, torch.Tensor)]


def _range(size: int | torch.SymInt, program: ExportedProgram) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    found = bound_sympy(size.node.expr, program.range_constraints)
    return int(found.lower), int(found.upper) if found.upper.is_Integer else sys.maxsize


def lower(
    program: Programs,
    *,
    delegate: bool = True,
    options: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Lowered:
    """The `.pte` of a traced program, or of several that become its methods, `forward` among them, without any
    partition if not `delegate`.

    `options` are the partitioner's, `constants` become methods that return them.
    """
    cache_patterns()
    admit_packed_weights()
    keep_unread_inputs()
    widen_symbols()
    prepare = PrepareConstants()
    partitioner = [Partitioner(dict(options or {}))] if delegate else []
    config = EdgeCompileConfig(_check_ir_validity=False)
    wanted = 0
    for traced in [program] if isinstance(program, ExportedProgram) else program.values():
        wanted += sum(SCALES in str(n.target) for n in traced.graph.nodes)
        _forget_groups(traced)
        keep_written_parameters(traced)
        copy_shared_values(traced)
        own_constants(traced)
        _settle_attention(traced)
    with torch.no_grad(), quiet(), _skipped() as reasons:
        try:
            edge = to_edge_transform_and_lower(
                program if isinstance(program, ExportedProgram) else dict(program),
                transform_passes=[prepare],
                partitioner=partitioner,
                compile_config=config,
                constant_methods=dict(constants) if constants else None,
            )
            signature = edge.exported_program("forward").graph_signature
            inputs = signature.user_inputs
            written = tuple(inputs.index(name) for name in signature.user_inputs_to_mutate.values())
            data = bytes(edge.to_executorch().buffer)
        except Exception as e:
            raise CannotLower(f"ExecuTorch cannot lower this program: {root_cause(e)}") from e
    notes = [f"{name} is outside of partitions: {why}" for name, why in reasons.items() if why == BEYOND]
    lowered = _account(data, reasons if delegate else {})
    operators = lowered.delegated + Counter({o.operator: o.count for o in lowered.outside})
    rounded = sum(count for name, count in operators.items() if SCALES in name)
    if delegate and rounded < wanted:
        notes.append(FLOATS.format(wanted - rounded, wanted))
    return replace(lowered, written=written, kept=tuple(sorted(prepare.kept)), notes=tuple(notes))


def _forget_groups(program: ExportedProgram) -> None:
    """Flatten inputs or outputs that are grouped by a class which has no name for files, in place."""
    signature = program.module_call_graph[0].signature
    assert signature is not None
    for kind in ("in_spec", "out_spec"):
        spec = getattr(signature, kind)
        try:
            treespec_dumps(spec)
        except NotImplementedError:
            flat = tuple(range(spec.num_leaves))
            setattr(signature, kind, tree_structure((flat, {}) if kind == "in_spec" else flat))


def _settle_attention(program: ExportedProgram) -> None:
    """Make the results of attention contiguous: the strides that ExecuTorch's decomposition gives are not those that
    the module's views were traced with. A copy of all elements in their order costs nothing when it runs."""
    for module in program.graph_module.modules():
        for node in list(module.graph.nodes) if isinstance(module, torch.fx.GraphModule) else ():
            if node.target is torch.ops.aten.scaled_dot_product_attention.default:
                with module.graph.inserting_after(node):
                    copy = module.graph.call_function(torch.ops.aten.contiguous.default, (node,))
                copy.meta = dict(node.meta)
                node.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)


class Partitioner(VulkanPartitioner):
    """ExecuTorch's partitioner, less what its partitions get wrong.

    It fails on partitions that take no tensor or give none, such as those of sizes alone; it stores the lower half of
    int64 constants beyond 32 bits; and it loses track of some buffers that partitions write.
    """

    def partition(self, exported_program: ExportedProgram) -> Any:
        with _refusing(exported_program):
            result = super().partition(exported_program)
        partitions: dict[str, set[torch.fx.Node]] = {}
        for node in exported_program.graph.nodes:
            if node.op != "placeholder" and (tag := node.meta.get("delegation_tag")):
                partitions.setdefault(tag, set()).add(node)
        named = self.options.get("alias_buffer_mutations", False)
        for tag, nodes in partitions.items():
            if not _has_tensors(nodes) or loses_buffers(exported_program, nodes, named):
                del result.partition_tags[tag]
                for node in nodes:
                    del node.meta["delegation_tag"]
        return result


def _has_tensors(nodes: set[torch.fx.Node]) -> bool:
    """Return whether a partition takes a tensor and gives one."""
    taken = {a for n in nodes for a in n.all_input_nodes} - nodes
    given = {n for n in nodes if not nodes.issuperset(n.users)}
    return all(any(isinstance(n.meta.get("val"), torch.Tensor) for n in side) for side in (taken, given))


def loses_buffers(program: ExportedProgram, nodes: set[torch.fx.Node], named: bool) -> bool:
    """Return whether a partition writes a buffer that something outside it reads, or that looks like another constant.

    ExecuTorch gives a reader outside a copy of its own, which no write reaches. If written buffers are `named` (with
    alias_buffer_mutations), an operator writes them in place, and later ones read the new value. Else a blob does not
    say which of them an output is the new value of: the importer takes the one constant of that shape which it was
    computed from, and which is not an earlier output's.
    """
    signature = program.graph_signature
    places = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    buffers = {target: places[name] for name, target in signature.inputs_to_buffers.items()}
    inputs = set(signature.user_inputs)
    claimed: set[torch.fx.Node] = set()
    for name, target in signature.buffers_to_mutate.items():
        value = next((n for n in nodes if n.name == name), None)
        if value is None:
            continue
        buffer = buffers[target]
        if any(n.op != "output" and (n not in nodes or (named and n > value)) for n in buffer.users):
            return True
        alike = {c for c in _sources(value, nodes) if c.name not in inputs and _type(c) == _type(value)} - claimed
        if not named and alike != {buffer}:
            return True
        claimed.add(buffer)
    return False


def _sources(node: torch.fx.Node, nodes: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return the placeholders that a node is computed from without leaving its partition."""
    left, seen = [node], {node}
    while left:
        new = {a for a in left.pop().all_input_nodes if a in nodes or a.op == "placeholder"} - seen
        left += new
        seen |= new
    return {n for n in seen if n.op == "placeholder"}


def _type(node: torch.fx.Node) -> tuple[torch.dtype, torch.Size]:
    return node.meta["val"].dtype, node.meta["val"].shape


@contextmanager
def _refusing(program: ExportedProgram) -> Iterator[None]:
    """Keep out of partitions what they do not hold: wide constants, and inputs of which they would read nothing."""
    original = VulkanSupportedOperators.is_node_supported
    inputs = set(program.graph_signature.user_inputs)

    def reason(node: torch.fx.Node) -> str:
        if any(n.meta.get(WIDE) for n in node.all_input_nodes) or _has_wide_int(node):
            return BEYOND
        if node.target is ops.edge.aten.constant_pad_nd.default and _pads_with_wide_int(node):
            return BEYOND
        if node.target is ops.edge.aten.addmm.default and _has_factors(node):
            return FACTORS
        written = node.target is ops.edge.aten.copy.default and node.args[0]
        return UNREAD if isinstance(written, torch.fx.Node) and written.name in inputs else ""

    def is_node_supported(self: VulkanSupportedOperators, submodules: Any, node: torch.fx.Node) -> bool:
        if node.op == "call_function" and (why := reason(node)):
            self.log_skip(node, why)
            return False
        return original(self, submodules, node)

    VulkanSupportedOperators.is_node_supported = is_node_supported
    try:
        yield
    finally:
        VulkanSupportedOperators.is_node_supported = original


def _has_factors(node: torch.fx.Node) -> bool:
    return any(factor != 1 for factor in (*node.args[3:], *node.kwargs.values()))


def _has_wide_int(node: torch.fx.Node) -> bool:
    numbers = [a for a in tree_leaves((node.args, node.kwargs)) if isinstance(a, int) and a != TO_THE_END]
    return not all(-(2**31) <= n < 2**31 for n in numbers)


def _pads_with_wide_int(node: torch.fx.Node) -> bool:
    """Return whether it pads int64 with a number beyond 32 bits, which the program says as a float."""
    value = node.args[2] if len(node.args) > 2 else node.kwargs.get("value", 0)
    return node.meta["val"].dtype is torch.int64 and isinstance(value, float) and not -(2**31) <= value < 2**31


@contextmanager
def _skipped() -> Iterator[dict[str, str]]:
    """Operators that the partitioner leaves out, with its reason."""
    found: dict[str, str] = {}

    def note(self: VulkanSupportedOperators, node: torch.fx.Node, reason: str) -> None:
        if node.op == "call_function":
            name = getattr(node.target, "__name__", str(node.target))
            found[_plain(name)] = REASONS.get(reason, reason)

    original = VulkanSupportedOperators.log_skip
    VulkanSupportedOperators.log_skip = note
    try:
        yield found
    finally:
        VulkanSupportedOperators.log_skip = original


def _account(data: bytes, reasons: Mapping[str, str]) -> Lowered:
    delegated: Counter[str] = Counter()
    outside: Counter[str] = Counter()
    partitions = 0
    program = read_program(data)
    for method in program.methods:
        partitions += len(method.delegates)
        for part in method.delegates:
            delegated.update(call.operator for call in read_delegate(part.blob, base=part.offset).calls)
        for chain in method.chains:
            outside.update(functional(i.operator) for i in chain if isinstance(i, KernelCall))
    others = (Outside(name, count, reasons.get(_plain(name), "")) for name, count in outside.most_common())
    forward = next(m for m in program.methods if m.name == "forward")
    tensors = tuple(v.sizes for k in forward.inputs if isinstance(v := forward.values[k], Tensor))
    return Lowered(data, partitions, delegated, tuple(others), tensors)


def _plain(name: str) -> str:
    """aten.mul.Tensor, for aten::mul.Tensor; the copies that the exporter makes of views count as the views."""
    namespace, _, rest = name.replace("::", ".").partition(".")
    base, _, overload = rest.partition(".")
    return f"{namespace}.{base.removesuffix('_copy')}.{overload or 'default'}"
