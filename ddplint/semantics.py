"""What DDP makes of used parameters: those its walk from forward's return value does not see, and those kept alive by zero.

With ``find_unused_parameters=True`` the reducer walks autograd's graph from the tensors it finds in forward's return value
(torch/nn/parallel/distributed.py, ``_find_tensors``; torch/csrc/distributed/c10d/reducer.cpp,
``search_unused_parameters``) and marks what it does not reach as ready at once. A parameter that the loss reaches all the
same is marked a second time in backward, and the reducer raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx
from torch import nn
from torch.nn.parallel.distributed import _find_tensors

from ddplint.analysis import Location, Outside, Parameter
from ddplint.graph import GradientGraph, below, op_of, reached_without
from ddplint.trace.recorder import tensors_in
from ddplint.trace.run import Path

Node = torch.fx.Node
_MULTIPLICATIONS = frozenset({"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply", "multiply_"})
_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})


def unseen(parameters: Sequence[Parameter], using: Callable[[str], tuple[Path, GradientGraph]]) -> tuple[Parameter, ...]:
    """``parameters`` with what DDP's walk misses: ``checkpoint``, ``bypass`` and ``zeroed``. ``using`` gives the recorded
    path on which a parameter is used.
    """
    views: dict[int, tuple[dict[Node, Location | None], dict[Node, Location | None]]] = {}
    settled = []
    for parameter in parameters:
        path, graph = using(parameter.name)
        if id(path) not in views:
            views[id(path)] = _hidden(path, graph), _kept_alive(path, graph)
        hidden, alive = views[id(path)]
        node = path.recording.parameters.get(parameter.name)
        if node is None or node not in graph.reached or parameter.usage == "never":
            settled.append(parameter)
            continue
        checkpoint = hidden.get(node)
        bypass = None
        if parameter.name not in path.from_outputs and checkpoint is None:
            bypass = _bypass(node, graph)
        settled.append(replace(parameter, checkpoint=checkpoint, bypass=bypass, zeroed=alive.get(node)))
    return tuple(settled)


def _location(node: Node) -> Location | None:
    site = op_of(node).site
    return site.location() if site is not None else None


def _hidden(path: Path, graph: GradientGraph) -> dict[Node, Location | None]:
    """Parameters that gradient reaches only inside a custom Function's backward, with the place of that Function."""
    if not graph.nested:
        return {}
    functions = {function for function, _ in graph.nested}
    seen_outside = _reached_from_forward(graph)
    found: dict[Node, Location | None] = {}
    for node in path.recording.parameters.values():
        if node in graph.reached and node not in seen_outside:
            inside = next((f for f, root in graph.nested if node in below(graph, [root])), None)
            found[node] = _location(inside if inside is not None else next(iter(functions)))
    return found


def _reached_from_forward(graph: GradientGraph) -> set[Node]:
    roots_inside = {root for _, root in graph.nested}
    return reached_without(graph, roots_inside)


def _bypass(node: Node, graph: GradientGraph) -> Location | None:
    """Where ``node`` is first used outside the wrapped forward, else where it is last used inside (an opaque output)."""
    users = [user for user, live in graph.consumers(node) if live]
    for user in users:
        if "" not in user.meta["nn_module_stack"]:
            return _location(user)
    return _location(users[-1]) if users else None


def _kept_alive(path: Path, graph: GradientGraph) -> dict[Node, Location | None]:
    """Parameters that gradient reaches only through multiplications by zero, with the place of one of those."""
    zeros = [node for node in graph.graph if op_of(node).name in _MULTIPLICATIONS and _by_zero(node)]
    if not zeros:
        return {}
    without = reached_without(graph, zeros)
    found: dict[Node, Location | None] = {}
    for node in path.recording.parameters.values():
        if node in graph.reached and node not in without:
            through = next(zero for zero in zeros if node in below(graph, [zero]))
            found[node] = _location(through)
    return found


def _by_zero(node: Node) -> bool:
    given = (*node.args, *node.kwargs.values())
    if any(op_of(producer).name in _ZEROS for producer, _ in op_of(node).inputs):
        return True
    return any(isinstance(a, (int, float)) and not isinstance(a, bool) and a == 0 for a in given)


def opaque_output(path: Path) -> str:
    """The type of a part of forward's return value that holds tensors with a gradient which DDP can't find, or ""."""
    for output in path.recording.outputs:
        visible = {id(t) for t in _find_tensors(output)}  # type: ignore[no-untyped-call]
        for tensor in tensors_in(output):
            if tensor.requires_grad and id(tensor) not in visible:
                return _opaque_part(output)
    return ""


def _opaque_part(value: Any) -> str:
    """The first part of ``value`` that ``_find_tensors`` does not look into."""
    if isinstance(value, (list, tuple)):
        return next((found for item in value if (found := _opaque_part(item))), "")
    if isinstance(value, dict):
        return next((found for item in value.values() if (found := _opaque_part(item))), "")
    if hasattr(value, "__dataclass_fields__"):
        return next((found for name in value.__dataclass_fields__ if (found := _opaque_part(getattr(value, name)))), "")
    has_gradient = any(t.requires_grad for t in tensors_in(value))
    return type(value).__name__ if has_gradient and not isinstance(value, torch.Tensor) else ""


def outside(kept: Iterable[tuple[Path, GradientGraph]], trained: Sequence[nn.Parameter] = ()) -> tuple[Outside, ...]:
    """Parameters that gradient reaches on one of the recorded paths and the model does not hold; then those of ``trained``,
    what its optimizers have, that it does not hold either.
    """
    found: dict[int, Outside] = {}
    for path, graph in kept:
        for node in path.recording.ops:
            value = path.recording.constants.get(str(node.target)) if node.op == "get_attr" else None
            if isinstance(value, nn.Parameter) and value.requires_grad and node in graph.reached and id(value) not in found:
                user = next((user for user, live in graph.consumers(node) if live), None)
                place = _location(user) if user is not None else None
                found[id(value)] = Outside(tuple(value.shape), value.numel(), place)
    for parameter in trained:
        if parameter.requires_grad and id(parameter) not in found:
            found[id(parameter)] = Outside(tuple(parameter.shape), parameter.numel(), None, in_loss=False)
    return tuple(found.values())
