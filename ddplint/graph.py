"""The networkx graph from the loss back to the parameters, over a recorded fx graph.

Nodes are the fx nodes. An edge goes from an operation to each node that an input of it came from: ``live`` says whether
gradient flows along it. What gradient reaches from the loss is the first of the three answers about a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import networkx as nx
import torch.fx

from ddplint.analysis import Flow, ModuleEdge
from ddplint.trace.recorder import Op, Recording
from ddplint.trace.sites import Site

Node = torch.fx.Node
_FLOWS: tuple[Flow, ...] = ("gradient", "cut", "dropped")  # the best comes first


@dataclass(frozen=True, slots=True)
class GradientGraph:
    """``graph``: consumer -> producer edges with ``live``. ``roots``: the nodes that a backward ran from."""

    graph: nx.DiGraph[Node]
    roots: frozenset[Node]
    nested: frozenset[tuple[Node, Node]]  # (custom Function, root of a backward that ran inside its backward)
    reached: frozenset[Node]  # what gradient reaches from the roots
    towards_loss: frozenset[Node]  # what the loss's value is made of, gradient or not
    consumed_modules: frozenset[str]  # modules of which some parameter, at any depth, was consumed

    def consumers(self, node: Node) -> Iterator[tuple[Node, bool]]:
        """The operations that consumed ``node``, in order of execution, each with whether its edge is live."""
        found = [(user, bool(data["live"])) for user, _, data in self.graph.in_edges(node, data=True)]
        yield from sorted(found, key=lambda pair: op_of(pair[0]).index)


def op_of(node: Node) -> Op:
    """What the recorder noted about ``node``."""
    op: Op = node.meta["op"]
    return op


def gradient_graph(recording: Recording) -> GradientGraph:
    """The graph of a recording, walked from every backward that ran in it."""
    graph: nx.DiGraph[Node] = nx.DiGraph()
    for node, op in recording.ops.items():
        graph.add_node(node)
        for producer, live in op.inputs:
            graph.add_edge(node, producer, live=live)
    roots: set[Node] = set()
    nested: set[tuple[Node, Node]] = set()
    for call in recording.backwards:
        if call.inside is None:
            roots.update(call.roots)
        else:  # a backward inside a custom Function's backward: gradient goes on through what it ran
            for root in call.roots:
                graph.add_edge(call.inside, root, live=True)
                nested.add((call.inside, root))
    return GradientGraph(
        graph,
        frozenset(roots),
        frozenset(nested),
        frozenset(_closure(graph, roots, live_only=True)),
        frozenset(_closure(graph, roots, live_only=False)),
        _owners(name for name, node in recording.parameters.items() if graph.in_degree(node) > 0),
    )


def _owners(names: Iterable[str]) -> frozenset[str]:
    """Every module that holds one of the parameters ``names``, directly or not."""
    owners: set[str] = set()
    for name in names:
        owner = name.rpartition(".")[0]
        while owner and owner not in owners:
            owners.add(owner)
            owner = owner.rpartition(".")[0]
    return frozenset(owners)


def reached_without(graph: GradientGraph, avoid: Iterable[Node]) -> set[Node]:
    """What gradient reaches from the roots if it can't go through the nodes ``avoid``."""
    avoided = set(avoid)
    return _closure(graph.graph, graph.roots - avoided, live_only=True, avoid=avoided)


def below(graph: GradientGraph, roots: Iterable[Node]) -> set[Node]:
    """``roots`` and what gradient reaches from them, whether or not one reaches these."""
    return _closure(graph.graph, roots, live_only=True)


def refined(graph: GradientGraph, recording: Recording) -> GradientGraph:
    """``graph`` with those edges of an operation with several live inputs that autograd's own node of it holds.

    The recorder's rule takes every input that requires grad for one that gets gradient. Some operations use the shape of
    an input only, and of a call with several results each is made of some of the inputs: autograd tells which.
    """
    finer = graph.graph.copy()
    for node, op in recording.ops.items():
        live = [producer for producer, is_live in op.inputs if is_live]
        functions = recording.made.get(node)
        if not functions or op.opaque or op.custom or (len(live) < 2 and op.name != "getitem"):
            continue
        kept = recording.behind(functions)
        for producer in live:
            finer.edges[node, producer]["live"] = producer in kept
        if op.name == "getitem":  # made of what autograd says, not of all that the call was given
            finer.remove_edges_from([(node, producer) for producer in live if producer not in kept])
            finer.add_edges_from(((node, producer) for producer in kept), live=True)
    return replace(graph, graph=finer, reached=frozenset(_closure(finer, graph.roots, live_only=True)))


def _closure(graph: nx.DiGraph[Node], roots: Iterable[Node], *, live_only: bool, avoid: Iterable[Node] = ()) -> set[Node]:
    """``roots`` and everything that edges lead to from them, nodes to ``avoid`` left out."""
    barred = set(avoid)
    seen = set(roots)
    stack = list(seen)
    adjacency = graph.adj
    while stack:
        for producer, data in adjacency[stack.pop()].items():
            if producer not in seen and producer not in barred and (data["live"] or not live_only):
                seen.add(producer)
                stack.append(producer)
    return seen


def module_edges(paths: Iterable[tuple[Recording, GradientGraph]]) -> tuple[ModuleEdge, ...]:
    """What flows between the modules of the recorded ``paths``: each pair once, those next to the loss first.

    Only values that depend on a parameter count: nothing is lost where the gradient of an input ends.
    """
    best: dict[tuple[str | None, str | None], tuple[int, Site | None]] = {}
    for recording, graph in paths:
        owner = _owning_module(recording)
        carrying = _made_of_parameters(recording, graph)
        for node in reversed(recording.ops):
            for producer, data in graph.graph.adj[node].items():
                key = owner(node), owner(producer)
                if producer not in carrying or key[0] == key[1]:
                    continue
                found = _flow(graph, node, producer, data["live"])
                if key not in best or found[0] < best[key][0]:
                    best[key] = found
    return tuple(
        ModuleEdge(consumer, producer, _FLOWS[flow], site.location() if site is not None else None)
        for (consumer, producer), (flow, site) in best.items()
    )


def _flow(graph: GradientGraph, node: Node, producer: Node, live: bool) -> tuple[int, Site | None]:
    """The place in ``_FLOWS`` of an edge of the graph, and the operation that cuts, if it is a cut."""
    if node not in graph.reached:
        return (1 if node in graph.towards_loss else 2), None
    if live:
        return 0, None
    cut = op_of(node) if op_of(producer).carries else op_of(producer)
    return 1, cut.grad_off or cut.site


def _made_of_parameters(recording: Recording, graph: GradientGraph) -> set[Node]:
    """The parameters, and every operation whose value depends on one."""
    found = set(recording.parameters.values())
    for node in recording.ops:  # in the order of execution
        if not found.isdisjoint(graph.graph.adj[node]):
            found.add(node)
    return found


def _owning_module(recording: Recording) -> Callable[[Node], str | None]:
    """Tells the module that holds a parameter, or in whose forward another node ran; None outside the model's forward."""
    holders = {node: name.rpartition(".")[0] for name, node in recording.parameters.items()}

    def owner(node: Node) -> str | None:
        if node in holders:
            return holders[node]
        return op_of(node).module if node.meta.get("nn_module_stack") else None

    return owner
