"""From a module and its inputs to a Graph: torch's own functional operators, each spelled out where we know how."""

from __future__ import annotations

import json
import operator
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from tilewright.ir.graph import VIEWS, Call, Code, Graph, Node, Ref, Struct, Template, Update, refs
from tilewright.ir.program import DTYPE_BYTES

from ..facts.gradients import NO_GRADIENTS, Gradients
from .associative import NAMESPACE
from .draws import draws
from .einsums import chain_einsums
from .exported import Exported, drops, exported, functional, has_own_backward, other_flag, quiet, told_apart
from .last_state import ends, lowered
from .lowering.depthwise import DEPTHWISE_LOWERINGS
from .lowering.lower import Builder, Expr, NotLowered, dtype_name, memory_order
from .lowering.lowerings import LOWERINGS
from .lowering.views import FILL_LOWERINGS
from .masks import without_masks
from .prune import early, pruned
from .rebound import alike, buffers_of

_LARGEST_CONSTANT = 256  # elements that are written into the graph itself
_BY_VALUE = "Python code takes a number out of a tensor, which is known only when it runs"


def trace(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    """The computation of `module(*args, **kwargs)` with these shapes, types and this training flag.

    Functional: what the module writes in place stands in `Graph.updates`. Raises ValueError, one line, where the module
    can't be traced."""
    return _trace(module, args, kwargs, (), NO_GRADIENTS)


def trace_operators(module: nn.Module, args: tuple[Any, ...]) -> Graph:
    """The same of a module made of torch's operators alone, as torch.compile hands them to its backends: its code,
    which is not looked at, writes to nothing but tensors, and asks for no flag."""
    with warnings.catch_warnings(), quiet(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = exported(module, args, {}, training=False)
        return _graph_of(program, module, args, {}, (), NO_GRADIENTS)


def trace_training(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor],
    gradients: Gradients,
) -> Graph:  # fmt: skip
    """The same for a step: `tensors`, among the arguments, are those that `gradients` counts. Nothing is moved to where
    a kernel would have it: the derivative comes first."""
    return _trace(module, args, kwargs, tensors, gradients)


def _trace(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor],
    gradients: Gradients,
) -> Graph:  # fmt: skip
    asked = [tensors[i] for i in gradients.inputs]
    if gradients.outputs and has_own_backward(module, args, kwargs, asked):
        raise ValueError("an autograd.Function of the module's own: its backward can't be derived")
    with buffers_of(module, args, kwargs) as (other, paths):
        if other:
            raise ValueError(f"each call writes {other}, which fused kernels would not")
        with warnings.catch_warnings(), quiet(), torch.set_grad_enabled(bool(gradients.outputs)):
            warnings.simplefilter("ignore")
            given = module, args, kwargs
            program = exported(*given, training=bool(gradients.outputs))
            graph = alike(_graph_of(program, *given, asked, gradients), paths)
            minds = drops(program)
            if not minds:
                with other_flag(module):
                    minds = _minds_training(graph, program, *given, asked, gradients)
            return replace(graph, training=module.training if minds else None)


def _graph_of(
    program: Exported, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any],
    asked: Sequence[torch.Tensor], gradients: Gradients,
) -> Graph:  # fmt: skip
    traced = _functional(program, module, args, kwargs, training=bool(gradients.outputs))
    if not gradients.outputs:
        graph = _Walk(module, traced).graph(args, kwargs)
        found = ends(graph)
        return early(_Walk(module, traced, ends=found).graph(args, kwargs) if found else graph)
    leaves = pytree.tree_leaves((args, kwargs))
    marked = [name for leaf, name in zip(leaves, traced.inputs, strict=True) if any(leaf is t for t in asked)]
    states = [name for name, path in traced.states.items() if path in gradients.parameters]
    graph = _Walk(module, traced, without={"detach", "detach_", *DEPTHWISE_LOWERINGS}).graph(args, kwargs)
    names = {n.name for n in graph.nodes}
    return replace(graph, wanted=tuple(n for n in (*marked, *states) if n in names))


def _minds_training(
    graph: Graph, program: Exported, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any],
    asked: Sequence[torch.Tensor], gradients: Gradients,
) -> bool:  # fmt: skip
    """Whether the module computes something else than this graph, made of this program, as its train flag is now."""
    now = exported(module, args, kwargs, training=bool(gradients.outputs))
    try:
        found = told_apart(program, now)
        return found if found is not None else _graph_of(now, module, args, kwargs, asked, gradients) != graph
    except ValueError:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traced:
    """A functional graph of aten operators, and what its placeholders and outputs stand for."""

    graph: fx.Graph
    states: Mapping[str, str]  # placeholder -> attribute path
    constants: Mapping[str, tuple[str, torch.Tensor]]  # placeholder -> attribute path (or none such) and value
    inputs: Sequence[str]  # placeholders of the leaves of (args, kwargs), in order
    results: Sequence[Any]  # fx nodes or constants: the leaves of the module's result
    result_spec: pytree.TreeSpec
    updates: Sequence[tuple[str, fx.Node]]  # placeholder and its new value


def _functional(
    program: Exported, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool
) -> _Traced:
    try:
        if isinstance(program, Exception):
            raise program
        made = functional(program, training=training)
        blocks = [n for n in program.graph.nodes if "set_grad_enabled" in str(n.target)] if training else []
    except Exception as reason:  # of as many kinds as those of torch.export
        if training:  # the other way sees operators alone, and not where gradients are switched off
            raise ValueError(f"torch.export: {_line(reason)}") from reason
        try:
            return _by_dispatch(module, args, kwargs)
        except Exception as again:
            said = dict.fromkeys((_line(reason), _line(again)))
            raise ValueError(f"torch.export: {'; make_fx: '.join(said)}") from reason
    if blocks:
        raise ValueError("gradients are switched off for a part of it")
    return _read(made)


def _line(reason: Exception) -> str:
    if type(reason).__name__ in ("GuardOnDataDependentSymNode", "DataDependentOutputException"):
        return _BY_VALUE
    text = next((line.strip() for line in str(reason).splitlines() if line.strip()), "")
    return f"{type(reason).__name__}: {text}"[:200]


def _read(program: ExportedProgram) -> _Traced:
    signature = program.graph_signature
    states, constants, inputs = {}, {}, []
    for spec in signature.input_specs:
        name = spec.arg.name
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            states[name] = str(spec.target)
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            constants[name] = (str(spec.target), program.constants[str(spec.target)])
        elif spec.kind is InputKind.USER_INPUT:
            inputs.append(name)
        else:
            raise ValueError(f"an input of kind {spec.kind.name} can't be represented")
    by_target = {path: name for name, path in states.items()}
    leaves = _output_leaves(program.graph)
    results, updates = [], []
    for spec, leaf in zip(signature.output_specs, leaves, strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            results.append(spec.arg.value if isinstance(spec.arg, ConstantArgument) else leaf)
        elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            target = str(spec.target)
            updates.append((by_target.get(target, target), leaf))
        else:
            raise ValueError(f"an output of kind {spec.kind.name} can't be represented")
    graph = without_masks(chain_einsums(program.graph), {n: t for n, (_, t) in constants.items()})
    return _Traced(graph=graph, states=states, constants=constants, inputs=inputs, results=results,
                   result_spec=program.call_spec.out_spec, updates=updates)  # fmt: skip


def _output_leaves(graph: fx.Graph) -> list[Any]:
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    return list(output.args[0])


def _by_dispatch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Traced:
    """What the module runs, operator by operator, on tensors without data (so data can't steer it)."""
    from torch.func import functional_call, functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    result_spec: list[pytree.TreeSpec] = []

    def run(values: dict[str, torch.Tensor], given: list[torch.Tensor]) -> list[Any]:
        filled = [given[list(tensors).index(i)] if i in tensors else leaf for i, leaf in enumerate(leaves)]
        positional, named = pytree.tree_unflatten(filled, spec)
        before = {name: value._version for name, value in values.items()}
        flat, out_spec = pytree.tree_flatten(functional_call(module, values, positional, named))
        if any(value._version != before[name] for name, value in values.items()):
            raise ValueError("writes to its parameters or buffers")
        result_spec.append(out_spec)
        return flat

    traced = make_fx(functionalize(run), tracing_mode="fake")(state, list(tensors.values()))
    placeholders = [node.name for node in traced.graph.nodes if node.op == "placeholder"]
    given = iter(placeholders[len(state) :])
    inputs = [next(given) if i in tensors else "" for i in range(len(leaves))]
    constants = {n.name: (str(n.target), _attribute(traced, str(n.target)))
                 for n in traced.graph.nodes if n.op == "get_attr"}  # fmt: skip
    return _Traced(graph=traced.graph, states=dict(zip(placeholders, state, strict=False)), constants=constants,
                   inputs=inputs, results=_output_leaves(traced.graph), result_spec=result_spec[-1],
                   updates=())  # fmt: skip


def _attribute(module: nn.Module, path: str) -> Any:
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


class _Walk:
    """Goes through a functional graph once and writes ours."""

    def __init__(
        self, module: nn.Module, traced: _Traced, *, without: Collection[str] = (), ends: Collection[str] = ()
    ) -> None:
        self.module = module
        self.lowerings = {name: lower for name, lower in LOWERINGS.items() if name not in without}
        self.traced = traced
        self.ends = ends  # calls whose result is the last state of a loop
        self.builder = Builder()
        self.calls: list[Call] = []
        self.values: dict[fx.Node, Any] = {}  # Expr, or a tuple of Expr and None

    def graph(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
        for node in self.traced.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._source(node)
            elif node.op == "call_function":
                self._call(node)
        arguments, keywords = self._arguments(args, kwargs)
        leaves = [self._template(leaf) for leaf in self.traced.results]
        result = _structure(pytree.tree_unflatten(leaves, self.traced.result_spec))
        names = {node.name: value for node, value in self.values.items() if isinstance(value, Expr)}
        updates = tuple(Update(target=names[target].node.name, value=self.values[value].node.name)
                        for target, value in self.traced.updates)  # fmt: skip
        whole = Graph(nodes=tuple(self.builder.nodes.values()), outputs=refs(result), calls=tuple(self.calls),
                      arguments=arguments, keywords=keywords, result=result, updates=updates)  # fmt: skip
        return pruned(whole)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Template, ...], Any]:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        by_name = {node.name: value for node, value in self.values.items()}
        filled = [_ref(by_name[name]) if isinstance(leaf, torch.Tensor) else _plain(leaf)
                  for leaf, name in zip(leaves, self.traced.inputs, strict=True)]  # fmt: skip
        positional, named = pytree.tree_unflatten(filled, spec)
        return tuple(_structure(a) for a in positional), tuple((k, _structure(v)) for k, v in named.items())

    def _source(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        constant = self.traced.constants.get(node.name)
        if constant is not None:
            self.values[node] = self._constant(node.name, *constant)
        elif isinstance(value, torch.Tensor):
            path = self.traced.states.get(node.name)
            op = "input" if path is None else "state"
            self.values[node] = self._add(node.name, op, value, path=path or node.name)
        else:
            self.values[node] = value

    def _constant(self, name: str, path: str, tensor: torch.Tensor) -> Expr:
        if isinstance(_attribute(self.module, path), torch.Tensor):
            return self._add(name, "state", tensor, path=path)
        if tensor.numel() > _LARGEST_CONSTANT:
            raise ValueError(f"a constant of {tensor.numel()} elements is made at construction and is no attribute")
        result = self._add(name, "constant", tensor, path=json.dumps([str(tensor.device), tensor.flatten().tolist()]))
        if tensor.numel() == 1 and not tensor.is_complex():
            self.builder.uniform[name] = tensor.item()
        return result

    def _add(self, name: str, op: str, like: torch.Tensor, *, path: str = "", item: int = 0, origin: str = "") -> Expr:
        shape = tuple(int(s) for s in like.shape)
        return self.builder.add(Node(name=name, op=op, shape=shape, dtype=dtype_name(like.dtype), path=path,
                                     item=item, origin=origin, order=memory_order(like)))  # fmt: skip

    # --- calls ---------------------------------------------------------------------------------------------------

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            self.values[node] = self.values[node.args[0]][node.args[1]]  # type: ignore[index]
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            raise ValueError(f"{getattr(node.target, '__name__', node.target)}: control flow or arithmetic on sizes")
        outs = node.meta.get("val")
        if outs is None or "_assert" in node.target.name():
            return
        if isinstance(outs, torch.SymInt | torch.SymFloat | torch.SymBool | bool | int | float):
            raise ValueError(f"{node.target.name()}: {_BY_VALUE}")
        single = isinstance(outs, torch.Tensor)
        flat = (outs,) if single else tuple(outs)
        results = self._lowered(node, flat)
        if results is None:
            results = self._opaque(node, flat)
        elif node.name in self.ends and results[0] is not None:
            results = [lowered(self.builder, results[0])]
        schema = node.target._schema
        self.calls.append(Call(
            name=node.name, target=_target(node.target), args=tuple(self._template(a) for a in node.args),
            kwargs=tuple((k, self._template(v)) for k, v in node.kwargs.items()),
            results=tuple("" if r is None else r.node.name for r in results), single=single,
            view=any(r.alias_info is not None for r in schema.returns), ordered=draws(node) or schema.is_mutable,
        ))  # fmt: skip
        self.values[node] = results[0] if single else tuple(results)
        if instead := self.builder.instead:
            changed = {n: instead.get(v.node.name, v) for n, v in self.values.items() if isinstance(v, Expr)}
            self.values.update(changed)
            instead.clear()

    def _opaque(self, node: fx.Node, outs: tuple[Any, ...]) -> Sequence[Expr | None]:
        name = str(node.target)
        if "as_strided" in name and self.builder.nodes[refs(self._template(node.args[0]))[0]].origin:
            raise ValueError(f"{name} depends on how an intermediate value lies in memory")
        if any(out is not None and not isinstance(out, torch.Tensor) for out in outs):
            raise ValueError(f"{name} returns something other than tensors")
        if len(outs) == 1:
            return (self._add(node.name, "call", outs[0], origin=node.name),)
        return [None if out is None else self._add(f"{node.name}_{i}_", "call", out, item=i, origin=node.name)
                for i, out in enumerate(outs)]  # fmt: skip

    def _lowered(self, node: fx.Node, outs: tuple[Any, ...]) -> Sequence[Expr | None] | None:
        """The results in our vocabulary, or None where this call is beyond it."""
        assert isinstance(node.target, torch._ops.OpOverload)
        name = node.target._schema.name.removeprefix("aten::")
        table = FILL_LOWERINGS if name in FILL_LOWERINGS else self.lowerings
        ins = tuple(n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor))
        if node.target.namespace not in ("aten", NAMESPACE) or name not in table or not _of_one_device((*ins, *outs)):
            return None
        self.builder.ins, self.builder.outs, self.builder.origin = ins, outs, node.name
        try:
            results = table[name](self.builder, **self._bound(node))
            if table is FILL_LOWERINGS:
                filled = self._opaque(node, outs)
                assert filled[0] is not None
                self.builder.uniform[filled[0].node.name] = results
                return filled
            return _fitted(self.builder, node, results, outs)
        except NotLowered:
            return None

    def _bound(self, node: fx.Node) -> dict[str, Any]:
        """The arguments by name, as lowerings call them: a tensor that the method belongs to is `x`."""
        assert isinstance(node.target, torch._ops.OpOverload)
        names = [argument.name for argument in node.target._schema.arguments]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        return {{"self": "x", "input": "x"}.get(k, k): fx.map_arg(v, self._value) for k, v in given.items()}

    def _value(self, node: fx.Node) -> Any:
        value = self.values[node]
        if isinstance(value, Expr) and value.dtype not in DTYPE_BYTES:
            raise NotLowered
        return value

    def _template(self, value: Any) -> Template:
        if isinstance(value, fx.Node):
            return _ref(self.values[value])
        if isinstance(value, tuple | list):
            return Struct(kind="list", items=tuple(self._template(v) for v in value))
        return _plain(value)


def _fitted(builder: Builder, node: fx.Node, results: Any, outs: tuple[Any, ...]) -> Sequence[Expr | None]:
    """The results in the dtypes that torch gives, and as torch lays them out; shapes must agree and used results must
    be there."""
    found = results if isinstance(results, Sequence) else (results,)
    used = {user.args[1] for user in node.users if user.target is operator.getitem}
    fitted: list[Expr | None] = []
    for i, (result, out) in enumerate(zip(found, outs, strict=True)):
        if result is None and i not in used:
            fitted.append(None)
        elif result is None or result.shape != tuple(out.shape) or 0 in result.shape:
            raise NotLowered
        else:
            result = result.to(dtype_name(out.dtype))
            made = builder.nodes[result.node.name]
            if made.origin == node.name and made.op not in VIEWS:  # views lie where their sources do
                builder.nodes[made.name] = replace(made, order=memory_order(out))
            fitted.append(result)
    return fitted


def _target(operator: torch._ops.OpOverload) -> str:
    """`aten.add.Tensor`: where the operator lies under torch.ops."""
    name = str(operator)
    return name if name.startswith(f"{operator.namespace}.") else f"{operator.namespace}.{name}"


def _of_one_device(tensors: Iterable[Any]) -> bool:
    return len({t.device for t in tensors if isinstance(t, torch.Tensor)}) <= 1


def _ref(value: Any) -> Template:
    if isinstance(value, Expr):
        return Ref(name=value.node.name)
    if isinstance(value, tuple):
        return Struct(kind="list", items=tuple(_ref(v) for v in value))
    return _plain(value)


def _plain(value: Any) -> Template:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.device):
        return Code(text=f"torch.device({str(value)!r})")
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return Code(text=str(value))
    if isinstance(value, complex):
        return Code(text=repr(value))
    raise ValueError(f"an argument of type {type(value).__name__} can't be represented")


def _structure(value: Any) -> Template:
    """A container of templates as Structs."""
    if type(value) in (tuple, list):
        return Struct(kind=type(value).__name__, items=tuple(_structure(v) for v in value))
    if type(value).__module__ == "torch.return_types":
        kind = f"torch.return_types.{type(value).__name__}"
        return Struct(kind=kind, items=tuple(_structure(v) for v in value))
    if type(value) is dict:
        return Struct(kind="dict", items=tuple(_structure(v) for v in value.values()), keys=tuple(value))
    if value is None or isinstance(value, bool | int | float | str | Ref | Code):
        return value
    raise ValueError(f"a container of type {type(value).__name__} can't be represented")
