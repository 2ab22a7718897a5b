"""The constants of a program: each owns its bytes, and expressions of constants are folded."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, TensorArgument
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from .backend import EdgeOpOverload, ExportedProgramPassBase, ExportedProgramPassResult, ops, torch

KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
NAMESPACES = ("aten", "dim_order_ops")  # of operators that are folded; not those of quantization and of the GPU
LAYOUTS = {  # free on a constant, and part of patterns such as linear layers
    "alias_copy",
    "clone",
    "_clone_dim_order",
    "detach_copy",
    "expand_copy",
    "permute_copy",
    "squeeze_copy",
    "t_copy",
    "transpose_copy",
    "unsqueeze_copy",
    "view_copy",
}
WIDE = "ptegpu_beyond_int32"  # the key of a placeholder's meta
SMALL = 1 << 16  # bytes that a folded constant may always have
GROWTH = 4  # bytes that a larger one may have for each byte of its operands
WIDENED = 1 << 12  # bytes that one may have if its elements are wider, as those of dequantized weights
LARGEST = 1 << 28  # bytes of an intermediate result


def _placeholders(program: ExportedProgram) -> dict[str, Node]:
    return {n.name: n for n in program.graph.nodes if n.op == "placeholder"}


def _written_buffers(program: ExportedProgram) -> set[str]:
    return set(program.graph_signature.buffers_to_mutate.values())


def _constants(program: ExportedProgram) -> Iterator[tuple[InputSpec, Node, torch.Tensor]]:
    """Yield the constants of a program, written buffers included, with their placeholders."""
    placeholders = _placeholders(program)
    for spec in list(program.graph_signature.input_specs):
        tensor = program.state_dict.get(spec.target, program.constants.get(spec.target)) if spec.kind in KINDS else None
        if isinstance(tensor, torch.Tensor):
            yield spec, placeholders[spec.arg.name], tensor


def own_constants(program: ExportedProgram) -> None:
    """Copy constants that are views, in place: ExecuTorch would write the storage of the full tensor."""
    for spec, placeholder, tensor in _constants(program):
        if (copy := _owned(tensor)) is not tensor:
            owned = torch.nn.Parameter(copy, False) if spec.kind == InputKind.PARAMETER else copy
            (program.state_dict if spec.target in program.state_dict else program.constants)[spec.target] = owned
            fake_mode = placeholder.meta["val"].fake_mode
            placeholder.meta["val"] = fake_mode.from_tensor(owned, static_shapes=True)


def _owned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that fills its storage: the tensor itself, or a copy."""
    if is_traceable_wrapper_subclass(tensor):
        return tensor
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    if tensor.nbytes == tensor.untyped_storage().nbytes() and reach == tensor.numel():
        return tensor
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def keep_written_parameters(program: ExportedProgram) -> None:
    """Turn parameters that operators write into buffers, in place: ExecuTorch loses writes to parameters."""
    specs = {s.arg.name: k for k, s in enumerate(program.graph_signature.input_specs) if s.kind == InputKind.PARAMETER}
    for placeholder in _written_placeholders(program.graph_module):
        if (k := specs.get(placeholder.name)) is not None:
            spec = program.graph_signature.input_specs[k]
            program.graph_signature.input_specs[k] = InputSpec(InputKind.BUFFER, spec.arg, spec.target, persistent=True)
            program.state_dict[spec.target] = program.state_dict[spec.target].detach()


def copy_shared_values(program: ExportedProgram) -> None:
    """Copy the value that a second buffer or input takes, in place.

    PyTorch and ExecuTorch identify outputs by name, and would treat two of one value as the same.
    """
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        used = _written_placeholders(module)
        for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
            source = node.args[1]
            if not isinstance(source, Node):
                continue
            if (base := _base(source)) in used:
                ones = [1] * source.meta["val"].dim()
                with module.graph.inserting_before(node):  # no pass of ExecuTorch removes a repeat
                    copy = module.graph.call_function(torch.ops.aten.repeat.default, (source, ones))
                copy.meta = dict(source.meta)
                for operand in node.all_input_nodes:  # PyTorch forgets users when it inlines a graph
                    operand.users.setdefault(node)
                node.replace_input_with(source, copy)
            used.add(base)


def _written_placeholders(module: torch.fx.GraphModule) -> set[Node]:
    """Return the placeholders that operators write, also in nested graphs such as those of `with torch.no_grad()`."""
    written: set[Node] = set()
    for node in module.graph.nodes:
        op = _operator(node)
        if op is not None and op._schema.is_mutable:
            writes = {a.name: a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments}
            arguments = dict(zip(writes, node.args)) | node.kwargs
            targets = [value for name, value in arguments.items() if writes[name]]
            written |= {_base(n) for n in tree_leaves(targets) if isinstance(n, Node)}
        attributes = [operator.attrgetter(a.target)(module) for a in node.all_input_nodes if a.op == "get_attr"]
        for inner in [a for a in attributes if isinstance(a, torch.fx.GraphModule)]:
            inputs = inner.graph.find_nodes(op="placeholder")
            operands = tree_leaves(node.args)[-len(inputs) :]  # the last arguments, one for each placeholder
            inner_written = _written_placeholders(inner)
            written |= {_base(o) for n, o in zip(inputs, operands) if n in inner_written and isinstance(o, Node)}
    return written


def _base(node: Node) -> Node:
    """Return the node that a node is, or may be, a view of; itself if it is not a view."""
    while (op := _operator(node)) is not None and isinstance(node.args[0] if node.args else None, Node):
        is_view = any(r.alias_info is not None for r in op._schema.returns)
        if not is_view and not op._can_decompose():  # reshape, contiguous, … are views or copies
            break
        node = node.args[0]
    return node


def _mark_wide(program: ExportedProgram) -> None:
    """Mark int64 constants with values that do not fit int32, because the partitioner does not see values."""
    for _, placeholder, tensor in _constants(program):
        if tensor.dtype is torch.int64 and tensor.numel():
            placeholder.meta[WIDE] = bool(tensor.min() < -(2**31) or tensor.max() >= 2**31)


def drop_unread(program: ExportedProgram, kinds: tuple[InputKind, ...]) -> None:
    """Remove constants of these kinds that are neither read nor written; shared ones count as unread."""
    signature = program.graph_signature
    placeholders = _placeholders(program)
    written = _written_buffers(program)
    for spec in list(signature.input_specs):
        if spec.kind in kinds and spec.target not in written and not placeholders[spec.arg.name].users:
            signature.input_specs.remove(spec)
            program.state_dict.pop(spec.target, None)
            program.constants.pop(spec.target, None)
            program.graph.erase_node(placeholders[spec.arg.name])
    program.graph_module.recompile()


def _keep_first_values(program: ExportedProgram) -> None:
    """Store the first values of written buffers, which ExecuTorch would start at zero."""
    written = _written_buffers(program)
    for spec, placeholder, tensor in _constants(program):
        if spec.target in written and tensor.any():
            placeholder.meta["et_init_buffer"] = True


def _copy_traded(program: ExportedProgram) -> None:
    """Copy the value that one buffer takes from another, in place.

    ExecuTorch believes that such a value was written already, and drops the write.
    """
    placeholders = _placeholders(program)
    output = program.graph.output_node()
    values = list(output.args[0])
    for k, spec in enumerate(program.graph_signature.output_specs):
        placeholder = placeholders.get(spec.arg.name)
        if placeholder is None or spec.kind not in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            continue
        with program.graph.inserting_before(output):  # no pass of ExecuTorch removes a repeat
            ones = [1] * placeholder.meta["val"].dim()
            values[k] = program.graph.call_function(ops.edge.aten.repeat.default, (placeholder, ones))
        values[k].meta["val"] = placeholder.meta["val"].clone()
        spec.arg = TensorArgument(values[k].name)
    output.args = (tuple(values),)
    program.graph_module.recompile()


class PrepareConstants(ExportedProgramPassBase):
    """A pass that folds what depends on no input and no dynamic size, unless the file would grow too much."""

    def __init__(self) -> None:
        super().__init__()
        self.states: set[str] = set()  # buffers that a program writes

    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        self.states |= _written_buffers(exported_program)
        _keep_first_values(exported_program)
        _copy_traded(exported_program)
        folded = _Folder(exported_program).fold()
        if folded:
            drop_unread(exported_program, KINDS)
        _mark_wide(exported_program)
        return ExportedProgramPassResult(exported_program, folded)


class _Folder:
    def __init__(self, program: ExportedProgram) -> None:
        self.program, self.graph = program, program.graph
        written = _written_buffers(program)
        self.values: dict[Node, Any] = {
            placeholder: tensor
            for spec, placeholder, tensor in _constants(program)
            if spec.target not in written and not is_traceable_wrapper_subclass(tensor)
        }
        self.sources: dict[Node, frozenset[Node]] = {n: frozenset([n]) for n in self.values}  # of constant nodes
        for node in self.graph.nodes:
            if _foldable(node) and all(a in self.sources for a in node.all_input_nodes):
                self.sources[node] = frozenset().union(*(self.sources[a] for a in node.all_input_nodes))

    def fold(self) -> bool:
        chosen = self._chosen()
        self._compute(chosen)
        for node in chosen:
            self._replace(node, self.values[node])
        self.graph.eliminate_dead_code()
        return bool(chosen)

    def _chosen(self) -> list[Node]:
        """Return the last constant nodes that may be folded."""
        last = {n: None for n in self.sources if any(u not in self.sources for u in n.users)}
        for node in reversed(self.sources):
            if node in last and not self._may_fold(node):
                del last[node]
                last |= dict.fromkeys(node.all_input_nodes)
        return list(last)

    def _may_fold(self, node: Node) -> bool:
        result = node.meta["val"]
        if (
            node.op == "placeholder"
            or not isinstance(result, torch.Tensor)
            or ((op := _operator(node)) is not None and op.overloadpacket.__name__ in LAYOUTS)
            or any(u.op == "output" for u in node.users)
        ):
            return False
        sources = [self.values[s] for s in self.sources[node]]
        if sources and max(sources, key=torch.Tensor.numel).itemsize < result.itemsize:
            return result.nbytes <= WIDENED
        return result.nbytes <= max(SMALL, GROWTH * sum(s.nbytes for s in sources))

    def _compute(self, chosen: list[Node]) -> None:
        needed = set(chosen)
        for node in reversed(self.sources):
            if node in needed:
                needed.update(node.all_input_nodes)
        for node in self.sources:
            if node in needed and node not in self.values:
                args, kwargs = map_arg((node.args, node.kwargs), self.values.__getitem__)
                with torch.no_grad():
                    self.values[node] = node.target(*args, **kwargs)

    def _replace(self, node: Node, value: torch.Tensor) -> None:
        signature, constants = self.program.graph_signature, self.program.constants
        value = _owned(value.detach())
        target = f"folded_{node.name}"
        while target in constants:
            target += "_"
        constants[target] = value
        inputs = set(signature.user_inputs)
        first = next(n for n in self.graph.nodes if n.op != "placeholder" or n.name in inputs)
        with self.graph.inserting_before(first):
            placeholder = self.graph.placeholder(target)
        placeholder.meta |= {k: v for k, v in node.meta.items() if k != "val"}
        placeholder.meta["val"] = node.meta["val"].fake_mode.from_tensor(value, static_shapes=True)
        index = sum(spec.kind != InputKind.USER_INPUT for spec in signature.input_specs)
        spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(placeholder.name), target)
        signature.input_specs.insert(index, spec)
        node.replace_all_uses_with(placeholder)


def _foldable(node: Node) -> bool:
    """Return whether a node is a pure function whose results are tensors of static, not too large sizes."""
    if node.op != "call_function" or any(isinstance(a, torch.SymInt) for a in tree_leaves((node.args, node.kwargs))):
        return False
    if node.target is not operator.getitem:
        op = _operator(node)
        if op is None or op.namespace not in NAMESPACES:
            return False
        if op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags:
            return False
    results = tree_leaves(node.meta.get("val"))
    return all(
        isinstance(r, torch.Tensor) and all(isinstance(d, int) for d in r.shape) and r.nbytes <= LARGEST
        for r in results
    )


def _operator(node: Node) -> torch._ops.OpOverload | None:
    target = node.target._op if isinstance(node.target, EdgeOpOverload) else node.target
    return target if isinstance(target, torch._ops.OpOverload) else None
