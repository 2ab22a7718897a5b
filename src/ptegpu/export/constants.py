"""The constants of a program: each owns its bytes, and what depends on constants alone is computed once, here."""

from __future__ import annotations

import operator
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, TensorArgument
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from .backend import EdgeOpOverload, ExportedProgramPassBase, ExportedProgramPassResult, ops, torch

KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
NAMESPACES = ("aten", "dim_order_ops")  # quantization, and what becomes operators of the GPU, stays as it is
LAYOUTS = {  # cost nothing on a constant, and are part of patterns such as linear layers
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
SMALL = 1 << 16  # bytes that a result may always have
GROWTH = 4  # times the bytes it is computed from
WIDENED = 1 << 12  # bytes, if its elements are wider than those: these are weights in few bits
LARGEST = 1 << 28  # bytes of anything on the way to a result


def own_constants(program: ExportedProgram) -> None:
    """Copies constants that are views, in place: of a view, ExecuTorch's serializer writes the whole storage."""
    places = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        if spec.kind not in KINDS:
            continue
        for tensors in (program.state_dict, program.constants):
            tensor = tensors.get(spec.target)
            if isinstance(tensor, torch.Tensor) and (copy := _owned(tensor)) is not tensor:
                tensors[spec.target] = torch.nn.Parameter(copy, False) if spec.kind == InputKind.PARAMETER else copy
                place = places[spec.arg.name]
                place.meta["val"] = place.meta["val"].fake_mode.from_tensor(tensors[spec.target], static_shapes=True)


def _owned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if its elements fill its storage, each once."""
    if is_traceable_wrapper_subclass(tensor):
        return tensor
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    if tensor.nbytes == tensor.untyped_storage().nbytes() and reach == tensor.numel():
        return tensor
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def constants_of(program: ExportedProgram) -> dict[Node, torch.Tensor]:
    """What never changes: parameters, and buffers that are not written."""
    places = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    written = set(program.graph_signature.buffers_to_mutate.values())
    found = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in KINDS and spec.target not in written:
            tensor = program.state_dict.get(spec.target, program.constants.get(spec.target))
            if isinstance(tensor, torch.Tensor) and not is_traceable_wrapper_subclass(tensor):
                found[places[spec.arg.name]] = tensor
    return found


def keep_written_parameters(program: ExportedProgram) -> None:
    """Turn parameters that operators write into buffers, in place: of parameters, ExecuTorch loses what is written."""
    specs = {s.arg.name: k for k, s in enumerate(program.graph_signature.input_specs) if s.kind == InputKind.PARAMETER}
    for place in _written_places(program.graph_module):
        if (k := specs.get(place.name)) is not None:
            spec = program.graph_signature.input_specs[k]
            program.graph_signature.input_specs[k] = InputSpec(InputKind.BUFFER, spec.arg, spec.target, persistent=True)
            program.state_dict[spec.target] = program.state_dict[spec.target].detach()


def copy_shared_values(program: ExportedProgram) -> None:
    """Give each buffer or input that takes the new value of another one a copy of it, in place.

    PyTorch and ExecuTorch tell outputs apart by their names, and would take the two for one.
    """
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        taken = _written_places(module)
        for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
            source = node.args[1]
            if not isinstance(source, Node):
                continue
            if (base := _base(source)) in taken:
                with module.graph.inserting_before(node):  # no pass of ExecuTorch's takes a repeat away
                    copy = module.graph.call_function(torch.ops.aten.repeat.default, (source, [1] * _rank(source)))
                copy.meta = dict(source.meta)
                for used in node.all_input_nodes:  # PyTorch forgets some where it inlines a graph
                    used.users.setdefault(node)
                node.replace_input_with(source, copy)
            taken.add(base)


def _rank(node: Node) -> int:
    rank: int = node.meta["val"].dim()
    return rank


def _written_places(module: torch.fx.GraphModule) -> set[Node]:
    """Return the placeholders that operators write, those of graphs within too, as `with torch.no_grad()` makes one."""
    written: set[Node] = set()
    for node in module.graph.nodes:
        op = _operator(node)
        if op is not None and op._schema.is_mutable:
            written |= {_base(value) for name, value in _arguments(node, op) if _is_written(op, name)}
        attributes = [operator.attrgetter(a.target)(module) for a in node.all_input_nodes if a.op == "get_attr"]
        for inner in [a for a in attributes if isinstance(a, torch.fx.GraphModule)]:
            places = inner.graph.find_nodes(op="placeholder")
            operands = tree_leaves(node.args)[-len(places) :]  # they come last, one for each placeholder
            found = _written_places(inner)
            written |= {_base(o) for place, o in zip(places, operands) if place in found and isinstance(o, Node)}
    return written


def _arguments(node: Node, op: torch._ops.OpOverload) -> list[tuple[str, Node]]:
    """The nodes among the arguments of a call, each with the name of its parameter."""
    named = dict(zip((a.name for a in op._schema.arguments), node.args)) | node.kwargs
    return [(name, n) for name, value in named.items() for n in tree_leaves(value) if isinstance(n, Node)]


def _is_written(op: torch._ops.OpOverload, name: str) -> bool:
    (argument,) = (a for a in op._schema.arguments if a.name == name)
    return argument.alias_info is not None and argument.alias_info.is_write


def _base(node: Node) -> Node:
    """Return what a node is a view of, or may be: itself if it is none."""
    while (op := _operator(node)) is not None and isinstance(node.args[0] if node.args else None, Node):
        is_view = any(r.alias_info is not None for r in op._schema.returns)
        if not is_view and not op._can_decompose():  # reshape, contiguous, … are views or copies
            break
        node = node.args[0]
    return node


def _mark_wide(program: ExportedProgram) -> None:
    """Mark int64 constants with a value that does not fit int32: the partitioner sees no values."""
    places = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        tensor = program.state_dict.get(spec.target, program.constants.get(spec.target)) if spec.kind in KINDS else None
        if isinstance(tensor, torch.Tensor) and tensor.dtype is torch.int64 and tensor.numel():
            places[spec.arg.name].meta[WIDE] = bool(tensor.min() < -(2**31) or tensor.max() >= 2**31)


def drop_unread(program: ExportedProgram, kinds: tuple[InputKind, ...]) -> None:
    """Removes constants of these kinds that nothing reads or writes; a shared one counts as unread too."""
    signature = program.graph_signature
    places = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    written = set(signature.buffers_to_mutate.values())
    for spec in list(signature.input_specs):
        if spec.kind in kinds and spec.target not in written and not places[spec.arg.name].users:
            signature.input_specs.remove(spec)
            program.state_dict.pop(spec.target, None)
            program.constants.pop(spec.target, None)
            program.graph.erase_node(places[spec.arg.name])
    program.graph_module.recompile()


def _keep_first_values(program: ExportedProgram) -> None:
    """Of buffers that are written: ExecuTorch would start them at zero."""
    places = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    written = set(program.graph_signature.buffers_to_mutate.values())
    for name, target in program.graph_signature.inputs_to_buffers.items():
        if target in written and program.state_dict.get(target, program.constants.get(target)).any():
            places[name].meta["et_init_buffer"] = True


def _copy_traded(program: ExportedProgram) -> None:
    """Give each buffer whose new value is the value of another one a copy of it, in place.

    ExecuTorch takes such a value for one that was written already, and leaves the write out.
    """
    places = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    output = program.graph.output_node()
    values = list(output.args[0])
    for k, spec in enumerate(program.graph_signature.output_specs):
        place = places.get(spec.arg.name)
        if place is None or spec.kind not in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            continue
        with program.graph.inserting_before(output):  # no pass of ExecuTorch's takes a repeat away
            ones = [1] * place.meta["val"].dim()
            values[k] = program.graph.call_function(ops.edge.aten.repeat.default, (place, ones))
        values[k].meta["val"] = place.meta["val"].clone()
        spec.arg = TensorArgument(values[k].name)
    output.args = (tuple(values),)
    program.graph_module.recompile()


class PrepareConstants(ExportedProgramPassBase):
    """Computes what depends on no input and no size that may change, unless the file would grow by much."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: set[str] = set()  # buffers that a program writes

    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        self.kept |= set(exported_program.graph_signature.buffers_to_mutate.values())
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
        self.values: dict[Node, Any] = dict(constants_of(program))
        self.sources: dict[Node, frozenset[Node]] = {n: frozenset([n]) for n in self.values}  # of what is constant
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
        """The last nodes, of what is constant, that may become constants."""
        last = {n: None for n in self.sources if any(u not in self.sources for u in n.users)}
        for node in reversed(self.sources):
            if node in last and not self._may_become_constant(node):
                del last[node]
                last |= dict.fromkeys(node.all_input_nodes)
        return list(last)

    def _may_become_constant(self, node: Node) -> bool:
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
            place = self.graph.placeholder(target)
        place.meta |= {k: v for k, v in node.meta.items() if k != "val"}
        place.meta["val"] = node.meta["val"].fake_mode.from_tensor(value, static_shapes=True)
        index = sum(spec.kind != InputKind.USER_INPUT for spec in signature.input_specs)
        spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(place.name), target)
        signature.input_specs.insert(index, spec)
        node.replace_all_uses_with(place)


def _foldable(node: Node) -> bool:
    """Whether it computes the same tensors from the same arguments, none of them large, all of known sizes."""
    if node.op != "call_function" or any(isinstance(a, torch.SymInt) for a in tree_leaves((node.args, node.kwargs))):
        return False
    if node.target is not operator.getitem:
        op = _operator(node)
        if op is None or op.namespace not in NAMESPACES:
            return False
        if op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags:
            return False
    results = tree_leaves(node.meta.get("val"))
    return all(isinstance(r, torch.Tensor) and _fits(r) for r in results)


def _fits(result: torch.Tensor) -> bool:
    return all(isinstance(d, int) for d in result.shape) and result.nbytes <= LARGEST


def _operator(node: Node) -> torch._ops.OpOverload | None:
    target = node.target._op if isinstance(node.target, EdgeOpOverload) else node.target
    return target if isinstance(target, torch._ops.OpOverload) else None
