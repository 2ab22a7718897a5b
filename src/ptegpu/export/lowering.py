"""A traced program to `.pte` bytes through the Vulkan/WebGPU partitioner, and an account of its operators."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves, tree_structure, treespec_dumps

from ..errors import ExportError
from ..format import FileTensor, KernelCall, read_program
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
    replaced,
    to_edge_transform_and_lower,
    torch,
    widen_symbols,
)
from .constants import (
    WIDE,
    PrepareConstants,
    copy_shared_values,
    drop_unread,
    keep_written_parameters,
    own_constants,
)
from .torch_errors import explain, root_cause

NO_LIMITS = (2**31 - 1,) * 3
TO_THE_END = 2**63 - 1  # the end of an open slice
BEYOND = "it has an int64 constant beyond 32 bits, which partitions cannot hold"
UNREAD = "it writes an input without reading it"
FACTORS = "it has alpha or beta, which ExecuTorch loses in partitions"
FORWARD = "forward"  # a method of every program
SCALES = "choose_qparams"  # in the names of operators that compute the scales of activations in a call
FLOATS = (
    "{} of {} activations that the module rounds to 8 bits stay floats: partitions only have operators that round the "
    "weights. Without partitions (--no-delegate, delegate=False), all are rounded"
)
REASONS = {"no operator implementation": "the partitioner has no such operator"}

Programs: TypeAlias = ExportedProgram | Mapping[str, ExportedProgram]  # `forward` alone, or all methods by name


class CannotTrace(ExportError):
    """PyTorch cannot trace a module."""


class CannotLower(ExportError):
    """ExecuTorch cannot lower a traced program."""


@dataclass(frozen=True, slots=True)
class MethodSource:
    """The source of a method: a module, inputs to trace it with, and its dynamic dimensions."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    dynamic_shapes: Any = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outside:
    """An operator outside of partitions. ptegpu runs it too, on the GPU if it can."""

    operator: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lowered:
    """A `.pte` with an account of its operators, inputs and state."""

    data: bytes  # the `.pte`
    partitions: int
    delegated: Counter[str] = field(default_factory=Counter)  # operators in partitions
    outside: tuple[Outside, ...] = ()
    bounds: tuple[tuple[int, ...], ...] = ()  # the largest shape of each tensor input
    written: tuple[int, ...] = ()  # indices of inputs that `forward` writes; they are its first outputs, in this order
    states: tuple[str, ...] = ()  # buffers that it writes
    notes: tuple[str, ...] = ()


def trace(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
) -> ExportedProgram:
    """Return what `torch.export` makes of a module; raise CannotTrace with PyTorch's message and the user's lines."""
    with quiet(), redirect_stderr(io.StringIO()), _decomposed_attention(), _in_eval_mode(module):
        try:  # PyTorch prints an unfinished graph to stderr
            program = torch.export.export(module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
        except Exception as e:
            raise CannotTrace(*explain("PyTorch cannot trace this module", e)) from e
    drop_unread(program, (InputKind.BUFFER,))  # ExecuTorch would store unread buffers, unlike parameters
    return program


@contextmanager
def _in_eval_mode(module: torch.nn.Module) -> Iterator[None]:
    """Put a module into eval mode for a while; afterwards, restore the mode of each part."""
    training = [m for m in module.modules() if m.training]
    with suppress(NotImplementedError):  # of a module that is traced already, as by quantization
        module.eval()
    try:
        yield
    finally:
        for m in training:
            m.training = True


@contextmanager
def _decomposed_attention() -> Iterator[None]:
    """Disable the operators for whole layers that `nn.TransformerEncoder` uses where gradients are off."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def lower(
    program: Programs,
    *,
    delegate: bool = True,
    options: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Lowered:
    """Return the `.pte` of a traced program, or of several that become its methods, `forward` among them.

    `options` are the partitioner's; without `delegate`, there are no partitions. `constants` become methods that
    return them.
    """
    cache_patterns()
    admit_packed_weights()
    keep_unread_inputs()
    widen_symbols()
    programs = {FORWARD: program} if isinstance(program, ExportedProgram) else dict(program)
    prepare = PrepareConstants()
    expected = 0  # operators that round activations
    for traced in programs.values():
        expected += sum(SCALES in str(n.target) for n in traced.graph.nodes)
        _forget_groups(traced)
        keep_written_parameters(traced)
        copy_shared_values(traced)
        own_constants(traced)
        _settle_attention(traced)
    with torch.no_grad(), quiet(), _skipped() as reasons:
        try:
            edge = to_edge_transform_and_lower(
                programs,
                transform_passes=[prepare],
                partitioner=[Partitioner(dict(options or {}))] if delegate else [],
                compile_config=EdgeCompileConfig(_check_ir_validity=False),
                constant_methods=dict(constants) if constants else None,
            )
            signature = edge.exported_program(FORWARD).graph_signature
            inputs = signature.user_inputs
            written = tuple(inputs.index(name) for name in signature.user_inputs_to_mutate.values())
            data = bytes(edge.to_executorch().buffer)
        except Exception as e:
            raise CannotLower(f"ExecuTorch cannot lower this program: {root_cause(e)}") from e
    notes = [f"{name} is outside of partitions: {why}" for name, why in reasons.items() if why == BEYOND]
    lowered = _account(data, reasons if delegate else {})
    operators = lowered.delegated + Counter({o.operator: o.count for o in lowered.outside})
    rounding = sum(count for name, count in operators.items() if SCALES in name)
    if delegate and rounding < expected:
        notes.append(FLOATS.format(expected - rounding, expected))
    return replace(lowered, written=written, states=tuple(sorted(prepare.states)), notes=tuple(notes))


def _forget_groups(program: ExportedProgram) -> None:
    """Flatten, in place, inputs or outputs that are grouped by a class without a name for files."""
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
    """Make the results of attention contiguous: ExecuTorch's decomposition returns other strides than those with which
    the module's views were traced. The copies cost nothing at run time.
    """
    for module in program.graph_module.modules():
        for node in list(module.graph.nodes) if isinstance(module, torch.fx.GraphModule) else ():
            if node.target is torch.ops.aten.scaled_dot_product_attention.default:
                with module.graph.inserting_after(node):
                    copy = module.graph.call_function(torch.ops.aten.contiguous.default, (node,))
                copy.meta = dict(node.meta)
                node.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)


class Partitioner(VulkanPartitioner):
    """ExecuTorch's partitioner without the partitions that it gets wrong.

    It fails on partitions without tensor inputs or outputs, such as those that only compute sizes; it stores the lower
    half of int64 constants beyond 32 bits; and it loses track of some buffers that partitions write.
    """

    def partition(self, exported_program: ExportedProgram) -> Any:
        with _excluding(exported_program):
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
    """Return whether a partition has a tensor among its inputs, and one among its outputs."""
    inputs = {a for n in nodes for a in n.all_input_nodes} - nodes
    outputs = {n for n in nodes if not nodes.issuperset(n.users)}
    return all(any(isinstance(n.meta.get("val"), torch.Tensor) for n in side) for side in (inputs, outputs))


def loses_buffers(program: ExportedProgram, nodes: set[torch.fx.Node], named: bool) -> bool:
    """Return whether a partition writes a buffer that is read outside of it, or that looks like another constant.

    ExecuTorch copies the buffer for readers outside, and no write reaches the copy. If written buffers are `named`
    (alias_buffer_mutations), an operator writes them in place, and later ones read the new value. Otherwise a blob does
    not record which buffer an output is the new value of: the importer takes the one constant of that shape from which
    the output was computed, and which no earlier output claims.
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
    pending, visited = [node], {node}
    while pending:
        new = {a for a in pending.pop().all_input_nodes if a in nodes or a.op == "placeholder"} - visited
        pending += new
        visited |= new
    return {n for n in visited if n.op == "placeholder"}


def _type(node: torch.fx.Node) -> tuple[torch.dtype, torch.Size]:
    return node.meta["val"].dtype, node.meta["val"].shape


@contextmanager
def _excluding(program: ExportedProgram) -> Iterator[None]:
    """Keep operators out of partitions that these cannot hold."""
    original = VulkanSupportedOperators.is_node_supported
    inputs = set(program.graph_signature.user_inputs)

    def reason(node: torch.fx.Node) -> str:
        numbers = [a for a in tree_leaves((node.args, node.kwargs)) if isinstance(a, int) and a != TO_THE_END]
        if any(n.meta.get(WIDE) for n in node.all_input_nodes) or not all(map(_fits_int32, numbers)):
            return BEYOND
        if node.target is ops.edge.aten.constant_pad_nd.default and node.meta["val"].dtype is torch.int64:
            value = node.args[2] if len(node.args) > 2 else node.kwargs.get("value", 0)
            if isinstance(value, float) and not _fits_int32(value):  # the program stores the number as a float
                return BEYOND
        if node.target is ops.edge.aten.addmm.default and any(x != 1 for x in (*node.args[3:], *node.kwargs.values())):
            return FACTORS
        written = node.target is ops.edge.aten.copy.default and node.args[0]
        return UNREAD if isinstance(written, torch.fx.Node) and written.name in inputs else ""

    def is_node_supported(self: VulkanSupportedOperators, submodules: Any, node: torch.fx.Node) -> bool:
        if node.op == "call_function" and (why := reason(node)):
            self.log_skip(node, why)
            return False
        return original(self, submodules, node)

    with replaced(VulkanSupportedOperators, "is_node_supported", is_node_supported):
        yield


def _fits_int32(number: float) -> bool:
    return -(2**31) <= number < 2**31


@contextmanager
def _skipped() -> Iterator[dict[str, str]]:
    """Yield the operators that the partitioner leaves out, with its reasons."""
    reasons: dict[str, str] = {}

    def log_skip(self: VulkanSupportedOperators, node: torch.fx.Node, reason: str) -> None:
        if node.op == "call_function":
            name = getattr(node.target, "__name__", str(node.target))
            reasons[_plain(name)] = REASONS.get(reason, reason)

    with replaced(VulkanSupportedOperators, "log_skip", log_skip):
        yield reasons


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
    forward = next(m for m in program.methods if m.name == FORWARD)
    tensors = tuple(v.sizes for k in forward.inputs if isinstance(v := forward.values[k], FileTensor))
    return Lowered(data, partitions, delegated, tuple(others), tensors)


def _plain(name: str) -> str:
    """Return aten.mul.Tensor for aten::mul.Tensor, and the name of a view for its copying variant."""
    namespace, _, rest = name.replace("::", ".").partition(".")
    base, _, overload = rest.partition(".")
    return f"{namespace}.{base.removesuffix('_copy')}.{overload or 'default'}"
