"""The whole way from a request to an analysis: target, trace, graph, usage. Runs where torch may be imported."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from ddplint.analysis import Analysis, Disagreement, Parameter, Rehearsal, TraceRecord
from ddplint.errors import DdplintError
from ddplint.graph import GradientGraph, gradient_graph, module_edges
from ddplint.rehearse import rehearse
from ddplint.request import Request
from ddplint.semantics import opaque_output, outside, unseen
from ddplint.stages import say
from ddplint.target import Target, load
from ddplint.trace.devices import TraceDevice
from ddplint.trace.environment import without_gpu
from ddplint.trace.explore import DEFAULT_PATHS, Exploration, Explorer, Outcome
from ddplint.trace.run import Built, Path, build, weight_bytes
from ddplint.trace.sites import Site
from ddplint.trace.values import Answer, NoValue, Plan
from ddplint.usage import answers, buffers, describe, settle, way

KEPT = 16  # recorded paths at most that explanations are taken from
OFF = "find_unused_parameters=False"
# What an unforced read gets where real values are out of reach: meta tensors of a model too large for the CPU.
UNKNOWN: dict[str, Answer] = {"bool": False, "int": 1, "float": 0.5, "mask": True}


@dataclass(slots=True)
class Traced:
    """Every path of one target, over ranks, on one device."""

    device: TraceDevice
    reason: str  # why not meta
    found: Exploration
    outcomes: list[Outcome]
    witnesses: Witnesses
    differing: tuple[Disagreement, ...]
    seconds: float
    rank_site: Site | None
    complete: bool
    default: dict[str, Answer] | None


class Witnesses:
    """The recorded paths that explanations are taken from: the first, and each that touches or uses a parameter which no
    path before it did. ``opaque``: the type of an output that DDP can't look into, on whichever path.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[Path, GradientGraph]] = []
        self.opaque = ""
        self._seen: set[tuple[str, bool]] = set()

    def see(self, path: Path, graph: GradientGraph) -> None:
        """Keep ``path`` if it shows anything new."""
        shown = {(name, node in graph.reached) for name, node in path.recording.parameters.items()}
        if not self.kept or (shown - self._seen and len(self.kept) < KEPT):
            self.kept.append((path, graph))
            self._seen |= shown
        self.opaque = self.opaque or opaque_output(path)

    def touching(self, name: str) -> tuple[Path, GradientGraph]:
        """The first path on which an operation takes parameter ``name``; the first of all if none does."""
        return next((kept for kept in self.kept if self._takes(kept, name)), self.kept[0])

    def using(self, name: str) -> tuple[Path, GradientGraph]:
        """The first path on which gradient reaches parameter ``name``; the first of all if none does."""
        return next((kept for kept in self.kept if kept[0].recording.parameters.get(name) in kept[1].reached), self.kept[0])

    @staticmethod
    def _takes(kept: tuple[Path, GradientGraph], name: str) -> bool:
        path, graph = kept
        node = path.recording.parameters.get(name)
        return node is not None and graph.graph.in_degree(node) > 0


def analyse(request: Request) -> Analysis:
    """Trace ``request.target`` on all paths and say what becomes of each of its parameters. Raises DdplintError."""
    traced, target = _on_some_device(request)
    first = traced.found.first
    seen = traced.witnesses
    parameters = settle(describe(first.built), seen.touching, traced.outcomes, traced.rank_site)
    parameters = unseen(parameters, seen.using)
    rehearsal, not_rehearsed = _rehearse(request, traced, target, parameters)
    strangers, left_out = _optimized(target, first.built)
    return Analysis(
        target=target.name,
        torch_version=torch.__version__,
        parameters=parameters,
        buffers=buffers(first.built),
        trace=TraceRecord(
            device=traced.device,
            device_reason=traced.reason,
            paths=len(traced.outcomes),
            ranks=len({o.plan.rank for o in traced.outcomes}),
            nodes=len(first.recording.ops),
            seconds=traced.seconds,
            disagreements=traced.differing,
            forced=sum(not o.observed for o in traced.outcomes),
            infeasible=len(traced.found.infeasible),
            complete=traced.complete,
        ),
        way=way(*seen.touching(request.explain), request.explain) if request.explain is not None else (),
        notices=(*target.notices, *_notices(traced), *(text for text in (left_out, not_rehearsed) if text)),
        rehearsal=rehearsal,
        opaque_output=seen.opaque,
        flow=module_edges((path.recording, graph) for path, graph in seen.kept),
        outside=outside(seen.kept, strangers),
        adapter=target.adapter,
    )


def _optimized(target: Target, built: Built) -> tuple[list[nn.Parameter], str]:
    """The parameters that the model's optimizers have and it does not, and a sentence on those that they lack."""
    if target.trained is None:
        return [], ""
    trained = target.trained(built.model)
    own, theirs = {id(p) for p in built.model.parameters()}, {id(p) for p in trained}
    if not own & theirs:  # of another model than the one that was traced, or none at all
        return [], ""
    lacking = [name for name, p in built.model.named_parameters() if p.requires_grad and id(p) not in theirs]
    shown = ", ".join(lacking[:3]) + (", …" if len(lacking) > 3 else "")
    sentence = f"the optimizers leave out {len(lacking)} of the model's trainable parameters: {shown}" if lacking else ""
    return [p for p in trained if id(p) not in own], sentence


def _rehearse(
    request: Request, traced: Traced, target: Target, parameters: Sequence[Parameter]
) -> tuple[Rehearsal | None, str]:
    """What DDP does, over one plan for each set of used parameters that was found on a rank; or why that is not known.

    Where it fails with the flag off, it is also asked what it does then once the parameters that no path uses are frozen.
    """
    if not request.rehearse:
        return None, ""
    plans: dict[tuple[int, frozenset[str], frozenset[str], frozenset[str]], Plan] = {}
    for outcome in traced.outcomes:
        if outcome.step == 0:
            key = (outcome.plan.rank, outcome.used, outcome.from_outputs, outcome.from_loss)
            plans.setdefault(key, outcome.plan)
    asked = functools.partial(
        rehearse,
        target,
        list(plans.values()),
        traced.device,
        ranks=max(request.ranks, 1),
        ranks_differ=traced.rank_site is not None or len({o.used for o in traced.outcomes}) > 1,
        steps=1 + max(o.step for o in traced.outcomes),
        default=traced.default,
    )
    try:
        rehearsal = asked()
        unused = frozenset(p.name for p in parameters if p.trainable and p.usage == "never")
        left = any(p.trainable and p.name not in unused for p in parameters)
    except DdplintError as error:
        return None, f"not rehearsed: {error}"
    frozen = None
    if unused and left and rehearsal.outcomes[OFF] != "ok":
        with contextlib.suppress(DdplintError):  # one that needs their gradient in forward: then it is not known
            frozen = asked(settings=(OFF,), frozen=unused).outcomes[OFF]
    return replace(rehearsal, plans=[_plain(plan) for plan in plans.values()], frozen=frozen), ""


def _plain(plan: Plan) -> dict[str, Any]:
    """``plan`` as JSON-ready data."""
    return {**asdict(plan), "answers": [[asdict(fork), answer] for fork, answer in plan.answers]}


def _notices(traced: Traced) -> list[str]:
    first = traced.found.first
    notices = [first.notice] if first.notice else []
    if first.no_backward:
        notices.append(f"backward does not run on {traced.device} ({first.no_backward}): autograd's graph answers alone")
    if not first.built.model.training:
        notices.append("the factory returned the model in eval mode: what only training does is not seen")
    return notices


def _on_some_device(request: Request) -> tuple[Traced, Target]:
    """All paths, on meta where that can be, else with real tensors if the weights are small enough to have them."""
    if request.device == "cpu":
        return _trace(request, "cpu", "--device cpu", None)
    reason, size = "", 0
    try:
        return _trace(request, "meta", "", None)
    except NoMeta as no:
        reason, size = no.reason, no.size
    except DdplintError as error:
        if request.device == "meta":
            raise
        reason = str(error)
    if request.device == "meta" or size > request.cpu_limit:
        return _trace(request, "meta", reason, UNKNOWN)
    return _trace(request, "cpu", reason, None)


class NoMeta(Exception):
    """Meta can't carry this target: why, and the size of its weights in bytes (0 where it could not be built)."""

    def __init__(self, reason: str, size: int) -> None:
        self.reason, self.size = reason, size
        super().__init__(reason)


def _trace(request: Request, device: TraceDevice, reason: str, default: dict[str, Answer] | None) -> tuple[Traced, Target]:
    """All paths on every rank. Raises NoMeta where meta can't go on and ``default`` does not say how."""
    disagreements: dict[str, Disagreement] = {}
    witnesses = Witnesses()

    def judge(path: Path) -> frozenset[str]:
        used, differing, graph = answers(path, gradient_graph(path.recording))
        witnesses.see(path, graph)
        for d in differing:
            disagreements.setdefault(d.name, d)
        return frozenset(name for name, is_used in used.items() if is_used)

    limit = request.paths or DEFAULT_PATHS
    outcomes: list[Outcome] = []
    complete = True
    first: Exploration | None = None
    rank_sites: list[Site] = []
    seconds = 0.0
    size = 0
    for rank in range(max(request.ranks, 1)):
        with without_gpu(rank=rank, world_size=max(request.ranks, 1)) as environment:
            say(f"building {request.target.factory} on {device}")
            target = load(request.target)
            built: Built = build(target, device, request.documented)
            size = weight_bytes(built.model)
            start = time.perf_counter()
            explorer = Explorer(target, built, device, judge, rank=rank, limit=limit, default=default)
            try:
                if first is not None and target.step is None and not rank_sites:
                    same = explorer.like(outcomes[0])
                    if same is not None and not environment.rank_asked:
                        outcomes.append(same)
                        seconds += time.perf_counter() - start
                        continue
                found = explorer.first()
                if (
                    device == "meta"
                    and found.first.received is None
                    and request.device == "auto"
                    and size <= request.cpu_limit
                ):
                    raise NoMeta(f"backward does not run on meta tensors ({found.first.no_backward})", size)
                rank_sites += environment.rank_asked
                if rank == 0 or found.outcomes[0].used != outcomes[0].used or rank_sites:
                    explorer.all(found, steps=request.steps)
            except NoValue as no:
                raise NoMeta(f"{no.need}{_at(no.site)}", size) from no
            except DdplintError as error:
                if device == "cpu" or default is not None or request.device == "meta":
                    raise
                raise NoMeta(str(error), size) from error  # real tensors say whether that is the target's or meta's
            if first is None:
                first = found
            outcomes += found.outcomes
            complete = complete and found.complete
            seconds += time.perf_counter() - start
    assert first is not None
    site = rank_sites[-1] if rank_sites else None
    differing = tuple(disagreements.values())
    traced = Traced(device, reason, first, outcomes, witnesses, differing, seconds, site, complete, default)
    return traced, target


def _at(site: Site | None) -> str:
    if site is None:
        return ""
    location = site.location()
    return f" ({location.file.rsplit('/', 1)[-1]}:{location.line})"
