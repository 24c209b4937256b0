"""The networkx graph from the loss back to the parameters, over a recorded fx graph.

Nodes are the fx nodes. An edge goes from an operation to each node that an input of it came from: ``live`` says whether
gradient flows along it. What gradient reaches from the loss is the first of the three answers about a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import networkx as nx
import torch.fx

from ddplint.trace.recorder import Op, Recording

Node = torch.fx.Node


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
