"""Status and cause of every parameter: what the answers of the traced paths come to, and the place that explains it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.fx
from torch import nn

from ddplint.analysis import Buffer, Cause, Disagreement, Location, Parameter, Step
from ddplint.graph import GradientGraph, below, op_of, refined
from ddplint.trace.explore import Outcome
from ddplint.trace.run import Built, Path
from ddplint.trace.sites import Site
from ddplint.trace.values import READS, Answer, Fork

Node = torch.fx.Node


@dataclass(frozen=True, slots=True)
class Explained:
    """Why a parameter gets no gradient: the cause, the place and one sentence."""

    cause: Cause
    site: Site | None
    why: str
    owner: str  # the module or parameter the sentence is about
    value: str = ""  # the module whose value it is, where one line serves several: each is a finding of its own


def answers(path: Path, graph: GradientGraph) -> tuple[dict[str, bool], tuple[Disagreement, ...], GradientGraph]:
    """Whether each parameter gets a gradient on this path, where the three answers differ for no known reason, and the
    graph, refined where an operation used only the shape of an input.

    Backward is the truth where it ran, else autograd's graph. Three differences have a known reason: autograd's graph
    holds a parameter and no gradient arrives (a custom Function that returns None for an input, a call with several
    results of which some are not used); a backward inside a custom Function's backward, as of a re-entrant checkpoint,
    reaches what autograd's graph does not hold; and behind a Function that returns None another one makes zeros of the
    gradient that did not come (torch/autograd/function.py, ``set_materialize_grads``).
    """
    used: dict[str, bool] = {}
    differing = []
    recording = path.recording
    nested = any(call.inside is not None for call in recording.backwards)
    stopping = any(not live and not op_of(p).opaque for _, p, live in _function_edges(graph))
    named = [call.leaves for call in recording.backwards if call.inside is None]
    ids = {name: id(p) for name, p in path.built.parameters.items()}
    revived: set[Node] | None = None  # what custom Functions give a gradient to, once that is asked for
    received = path.received
    if received is not None and any(n in graph.reached and name not in received for name, n in recording.parameters.items()):
        graph = refined(graph, recording)
    for name, parameter in path.built.parameters.items():
        if not parameter.requires_grad:
            continue
        node = recording.parameters.get(name)
        by_graph = node is not None and node in graph.reached
        if by_graph and named and all(leaves is not None for leaves in named):
            by_graph = any(ids[name] in leaves for leaves in named if leaves is not None)
        by_autograd = name in path.walked
        by_backward = None if path.received is None else name in path.received
        truth = by_autograd if by_backward is None else by_backward
        used[name] = truth
        undefined = by_autograd and not truth and (stopping or not by_graph)  # it is in the graph, and no gradient arrives
        autograd_explained = undefined or (truth and nested and not by_autograd)
        if by_backward is None and by_autograd != by_graph and (stopping or nested):
            used[name] = by_graph  # what autograd's walk can't see, where no backward can settle it
            continue
        if by_autograd and by_graph and not truth:
            continue
        if by_autograd and truth and not by_graph and stopping:
            if revived is None:
                revived = below(graph, [n for n in graph.graph if op_of(n).custom])
            if node in revived:
                continue
        if by_graph != truth or (by_autograd != truth and not autograd_explained):
            differing.append(Disagreement(name, by_graph, by_autograd, by_backward))
    return used, tuple(differing), graph


def _function_edges(graph: GradientGraph) -> Iterable[tuple[Node, Node, bool]]:
    """Edges out of custom Functions."""
    for user, producer, live in graph.graph.edges(data="live"):
        if user.meta["op"].custom:
            yield user, producer, live


def explain(path: Path, graph: GradientGraph, name: str) -> Explained:
    """Why parameter ``name`` got no gradient on ``path``."""
    node = path.recording.parameters.get(name)
    if node is None or graph.graph.in_degree(node) == 0:
        return _uncalled(path, graph, name)
    carried, cuts, last, read = _follow(graph, node)
    if carried & graph.roots:  # in autograd's graph, as one of several inputs or results of a call
        user = next(user for user, _ in graph.consumers(node))
        why = f"autograd's graph holds it, but no gradient arrives: {_call(user)}"
        return Explained("severed", op_of(user).site, why, name)
    reached_outputs = [n for n in path.recording.returned if n in carried]
    if reached_outputs and name in path.from_outputs:
        output = max(reached_outputs, key=lambda n: op_of(n).index)
        site = op_of(output).site
        why = f"it reaches forward's output through {_call(output)}, and the loss does not use that output"
        cut = _first(graph, [cut for cut in cuts if cut in graph.towards_loss])
        if cut is not None:
            site = _cut_site(cut)
            why = f"it reaches forward's output through {_call(output)}, and the loss uses it without gradient: {_call(cut)}"
        return Explained("output-only", site, why, name, op_of(output).module)
    cut = _first(graph, [cut for cut in cuts if read or cut in graph.towards_loss])
    if cut is not None:
        return Explained("severed", _cut_site(cut), _cut_sentence(cut), name)
    site = op_of(last).site
    inner = _inner(site)
    why = f"its value last goes into {_call(last)}{inner}, and nothing made of it reaches the loss"
    return Explained("discarded", site, why, name, op_of(last).module)


def _first(graph: GradientGraph, cuts: Sequence[Node]) -> Node | None:
    """The first of ``cuts``. Those seldom meant come last: an update through ``.data``, a checkpoint seen from outside."""
    checkpoints = {function for function, _ in graph.nested}
    return min(cuts, key=lambda n: (op_of(n).name == "data" or n in checkpoints, op_of(n).index), default=None)


def _follow(graph: GradientGraph, start: Node) -> tuple[set[Node], list[Node], Node, bool]:
    """Where the value of ``start`` goes: the nodes that still carry gradient to it, those that cut it, the last of all,
    and whether it is turned into Python on the way (a branch on it is not: it says nothing about the value's use).
    """
    read = False
    carried, cuts = {start}, []
    seen = {start}
    queue = deque([start])
    last = start
    while queue:
        node = queue.popleft()
        for user, live in graph.consumers(node):
            op = op_of(user)
            read = read or op.name in READS - {"__bool__"}
            keeps = live and op.carries and node in carried
            if keeps and user not in carried:
                carried.add(user)
                seen.add(user)
                queue.append(user)
            elif not keeps:
                if node in carried:
                    past = not live and op_of(node).writes and op_of(node).carries  # written past autograd, then used
                    cuts.append(node if past and node is not start else user)
                if user not in seen and user not in graph.towards_loss:
                    seen.add(user)
                    queue.append(user)
            if op.index > op_of(last).index:
                last = user
    return carried, [c for c in cuts if c not in carried or op_of(c).writes], last, read


def _call(node: Node) -> str:
    op = op_of(node)
    return f"`{op.name}` in `{op.module}`" if op.module else f"`{op.name}`"


def _inner(site: Site | None) -> str:
    text = site.inner_text() if site is not None else ""
    return f" ({text})" if text else ""


def _cut_site(cut: Node) -> Site | None:
    op = op_of(cut)
    return op.grad_off or op.site


def _cut_sentence(cut: Node) -> str:
    op = op_of(cut)
    if op.grad_off is not None and op.grad_off != op.site:
        return f"gradients are switched off here while {_call(cut)} uses it"
    if op.grad_off is not None:
        return f"{_call(cut)} uses it with gradients switched off"
    if op.writes and op.carries:
        return f"{_call(cut)} writes it into memory past autograd (through `.data` or a detached alias)"
    if op.custom:
        return f"the custom Function `{op.name}` gives it no gradient{_inner(op.site)}"
    if op.name in READS:
        return f"`{op.name}` turns its value into Python, where no gradient flows{_inner(op.site)}"
    return f"{_call(cut)} cuts the gradient: what it returns does not require grad{_inner(op.site)}"


def _uncalled(path: Path, graph: GradientGraph, name: str) -> Explained:
    """A parameter that no operation consumed: where the outermost module of which that is true was created."""
    owner = name.rpartition(".")[0]
    parts = owner.split(".") if owner else []
    called, consumed = path.recording.called, graph.consumed_modules
    subject = name
    for depth in range(1, len(parts) + 1):
        prefix = ".".join(parts[:depth])
        if prefix not in called and prefix not in consumed:
            subject = prefix
            break
    site = _created(path.built, path.built.model, subject)
    if subject == name:
        runs = f" ({f'`{owner}`' if owner else 'the model'} runs without it)" if owner in called else ""
        why = f"no operation reads it{runs}"
    else:
        why = f"`{subject}` is created here and never called"
    return Explained("uncalled", site, why + _inner(site), subject)


def _created(built: Built, model: nn.Module, name: str) -> Site | None:
    """Where ``name`` was put into its owner, or the nearest owner that was (copies are made without registration)."""
    while name:
        owner, _, attribute = name.rpartition(".")
        site = built.sites.get((id(model.get_submodule(owner)), attribute))
        if site is not None:
            return site
        name = owner
    return None


def describe(built: Built) -> tuple[Parameter, ...]:
    """Every parameter of the model, its usage not yet known."""
    model = built.model
    found = []
    for name, parameter in built.parameters.items():
        owner = name.rpartition(".")[0]
        found.append(
            Parameter(
                name=name,
                aliases=built.aliases[name],
                module=owner,
                module_type=type(model.get_submodule(owner)).__name__,
                shape=tuple(parameter.shape),
                dtype=str(parameter.dtype).removeprefix("torch."),
                numel=parameter.numel(),
                bytes=parameter.numel() * parameter.element_size(),
                trainable=name in built.trainable,
            )
        )
    return tuple(found)


def buffers(built: Built) -> tuple[Buffer, ...]:
    """The buffers that the model's state dict holds (``persistent`` in ``Module.register_buffer``)."""
    names: dict[int, list[str]] = {}
    held: dict[int, torch.Tensor] = {}
    for prefix, module in built.model.named_modules(remove_duplicate=False):
        for name, tensor in module._buffers.items():
            if tensor is not None and name not in module._non_persistent_buffers_set:
                names.setdefault(id(tensor), []).append(f"{prefix}.{name}" if prefix else name)
                held[id(tensor)] = tensor
    return tuple(
        Buffer(
            first,
            tuple(others),
            tuple(held[known].shape),
            str(held[known].dtype).removeprefix("torch."),
            held[known].numel() * held[known].element_size(),
        )
        for known, (first, *others) in names.items()
    )


def settle(
    parameters: Sequence[Parameter],
    witness: Callable[[str], tuple[Path, GradientGraph]],
    outcomes: Sequence[Outcome],
    rank_site: Site | None,
) -> tuple[Parameter, ...]:
    """``parameters`` with usage, evidence, cause and place over all ``outcomes``. ``witness`` gives the recorded path that
    explains a parameter by its name.

    ``rank_site``: where the target asks which rank it is on, if it does.
    """
    built = witness("")[0].built
    traced = {name for name, p in built.parameters.items() if p.requires_grad}
    decisions = decide(outcomes, traced)
    settled = []
    for parameter in parameters:
        name = parameter.name
        if name not in traced:
            settled.append(parameter)
            continue
        uses = [name in o.used for o in outcomes]
        facts = replace(
            parameter,
            usage="always" if all(uses) else "sometimes" if any(uses) else "never",
            from_outputs=any(name in o.from_outputs for o in outcomes),
            from_loss=any(name in o.from_loss for o in outcomes),
        )
        if facts.usage == "never":
            found = explain(*witness(name), name)
        elif facts.usage == "sometimes":
            seen = {name in o.used for o in outcomes if o.observed}
            decision = decisions[name]
            site = decision.site
            if site is None and decision.by == "rank":
                site = rank_site
            if site is None:
                site = _created(built, built.model, name)
            found = Explained("conditional", site, decision.why, name)
            facts = replace(facts, evidence="observed" if len(seen) == 2 else "possible", decided_by=decision.by)
        else:
            settled.append(facts)
            continue
        location = found.site.location() if found.site is not None else None
        facts = replace(
            facts, cause=found.cause, location=location, why=found.why, subtree=found.owner, place=_place(found, location)
        )
        settled.append(facts)
    return _with_subtrees(settled)


@dataclass(frozen=True, slots=True)
class Decision:
    """What decides whether a parameter is used: by what, where (None: no one place), and how it goes, as a sentence."""

    by: str
    site: Site | None
    why: str


def decide(outcomes: Sequence[Outcome], names: Iterable[str]) -> dict[str, Decision]:
    """For each of ``names`` that is used on some outcomes only, what decides it.

    A fork decides it if one forced answer there leaves it unused and another, all else alike, does not; of several forks
    the one that decides over the fewest parameters. Without one, what differs between the runs as they are: rank, inputs,
    step, seed.
    """
    groups: dict[tuple[Fork, tuple[tuple[Fork, Answer], ...], int, int, int, int], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.plan.answers:
            forked = outcome.plan.answers[-1][0]
            plan = outcome.plan
            key = (forked, plan.answers[:-1], plan.inputs, plan.rank, plan.seed, plan.after)
            groups.setdefault(key, []).append(outcome)
    for (_, context, inputs, rank, seed, after), group in groups.items():  # the same path with nothing forced at that fork
        group += [
            o
            for o in outcomes
            if (o.plan.answers, o.plan.inputs, o.plan.rank, o.plan.seed, o.plan.after + o.step)
            == (context, inputs, rank, seed, after)
        ]
    wanted = {n for n in names if 0 < sum(n in o.used for o in outcomes) < len(outcomes)}
    best: dict[str, tuple[tuple[bool, int], Decision]] = {}
    for (fork, *_), group in groups.items():
        flipped = {n for n in wanted if len({n in o.used for o in group}) == 2}
        asked = next((o.asked[fork] for o in group if fork in o.asked), None)
        if asked is None:  # forced, and never asked there
            continue
        for name in flipped:
            without = [a for o in group if name not in o.used and (a := o.answer(fork)) is not None]
            worth = (not without, len(flipped))
            if name not in best or worth < best[name][0]:
                best[name] = worth, _decision(fork, asked.site, without)
    return {name: best[name][1] if name in best else _by_difference(outcomes, name) for name in wanted}


def _decision(fork: Fork, site: Site, without: Sequence[Answer]) -> Decision:
    """``without``: the answers at ``fork`` that leave the parameter unused."""
    said = list(dict.fromkeys(_answer_text(fork, answer) for answer in without))
    when = f"unused when {' or '.join(said)}" if said else "unused for the values of the example inputs, used for others"
    return Decision("draw" if fork.domain in ("draw", "choice") else "value", site, f"{when}{_inner(site)}")


def _answer_text(fork: Fork, answer: Answer) -> str:
    if fork.domain == "draw":
        return f"the draw is {answer}"
    if fork.domain == "choice":
        return f"the draw is number {answer}"
    if isinstance(answer, str):
        read = {"bool": "false", "mask": "the mask is all false"}.get(fork.domain, "its element is 0")
        return read if answer in ("even", "odd") else _turn_text(fork, answer)
    if fork.domain == "mask":
        return "the mask is all true" if answer else "the mask is all false"
    if fork.domain == "bool":
        return "true" if answer else "false"
    return f"the value is {answer:g}" if isinstance(answer, (int, float)) else f"the value is {answer}"


def _turn_text(fork: Fork, answer: str) -> str:
    """A varying answer (``values.in_turn``) in words."""
    if answer in ("rising", "falling"):
        return f"the values are {answer}"
    number = 1 + int(answer.removeprefix("at "))
    return f"only the {number}. answer is true" if fork.domain in ("bool", "mask") else f"the {number}. value is the largest"


def _by_difference(outcomes: Sequence[Outcome], name: str) -> Decision:
    """What differs between the runs as they are that use ``name`` and those that do not."""
    observed = [o for o in outcomes if o.observed] or list(outcomes)
    base = observed[0]
    other = next((o for o in observed if (name in o.used) != (name in base.used)), None)
    if other is None:
        return _by_several(outcomes, name)
    unused = other if name in base.used else base
    if other.plan.rank != base.plan.rank:
        return Decision(
            "rank",
            None,
            f"unused on rank {unused.plan.rank}, used on rank {base.plan.rank + other.plan.rank - unused.plan.rank}",
        )
    if other.plan.inputs != base.plan.inputs:
        return Decision("inputs", None, f"unused with example inputs {unused.plan.inputs + 1}, used with others")
    if other.step != base.step:
        return Decision("step", None, f"unused at step {unused.step + 1}, used at another")
    return Decision("seed", None, f"unused with seed {unused.plan.seed}, used with another")


def _by_several(outcomes: Sequence[Outcome], name: str) -> Decision:
    """The forks of which no one alone decides: where a path that uses ``name`` and one that does not differ the least."""
    with_it = [o for o in outcomes if name in o.used]
    without = [o for o in outcomes if name not in o.used]

    def differing(pair: tuple[Outcome, Outcome]) -> list[Fork]:
        """Forks that were asked on the first of ``pair`` and not answered the same there."""
        one, other = (dict(o.plan.answers) for o in pair)
        return [fork for fork in pair[0].asked if one.get(fork) != other.get(fork)]

    rare, common = (with_it, without) if len(with_it) <= len(without) else (without, with_it)
    pair = min(((o, other) for o in rare for other in common), key=lambda pair: len(differing(pair)))
    forks = [fork for fork in differing(pair) if fork in dict(pair[0].plan.answers)]
    if not forks:
        return Decision("value", None, "unused on some combination of the answers to its value reads")
    given = dict(pair[0].plan.answers)
    said = " and ".join(f"{_answer_text(fork, given[fork])} at line {pair[0].asked[fork].site.line}" for fork in forks[:3])
    site = pair[0].asked[forks[-1]].site
    state = "used" if rare is with_it else "unused"
    return Decision("value", site, f"{state} when several answers meet: {said}{_inner(site)}")


def _place(found: Explained, location: Location | None) -> str:
    if location is None:
        return found.owner
    line = f"{os.path.abspath(location.file)}:{location.line}"
    return f"{line} {found.value}" if found.value else line


def _with_subtrees(parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Each unused parameter with the outermost module all of whose parameters share its cause and place."""
    under: dict[str, set[tuple[str | None, str]]] = {}
    for p in parameters:
        key = (p.cause, p.place)
        parts = p.name.split(".")
        for depth in range(1, len(parts)):
            under.setdefault(".".join(parts[:depth]), set()).add(key)
    settled = []
    for p in parameters:
        if p.cause is None or not p.place:
            settled.append(p)
            continue
        parts = p.name.split(".")
        prefixes = (".".join(parts[:depth]) for depth in range(1, len(parts)))
        subtree = next((prefix for prefix in prefixes if len(under[prefix]) == 1), p.name)
        settled.append(replace(p, subtree=subtree))
    return tuple(settled)


def way(path: Path, graph: GradientGraph, name: str) -> tuple[Step, ...]:
    """The way of a parameter's value towards the loss, or as far as it goes: one step an operation, in order.

    Of all ways the shortest is shown: through carrying operations as far as gradient comes back, then on to the loss.
    """
    start = path.recording.parameters.get(name)
    if start is None:
        return ()
    before: dict[Node, Node | None] = {start: None}
    carried = {start}
    queue = deque([start])
    end, ends = start, graph.roots
    while queue:
        node = queue.popleft()
        if node in ends:
            end = node
            break
        for user, live in graph.consumers(node):
            if user in before:
                continue
            before[user] = node
            if node in carried and live and op_of(user).carries:
                carried.add(user)
                queue.appendleft(user) if user in graph.reached else queue.append(user)
            else:
                queue.append(user)
            end = user if op_of(user).index > op_of(end).index else end
    steps: list[Step] = []
    current: Node | None = end
    while current is not None and current is not start:
        op = op_of(current)
        site = _cut_site(current) if current not in carried else op.site
        steps.append(Step(op.name, op.module, site.location() if site is not None else None, current in carried))
        current = before[current]
    return tuple(reversed(steps))
