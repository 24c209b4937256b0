"""What ``find_unused_parameters=True`` costs a target, measured on this machine: two real processes over gloo, on the CPU.

Nothing here imports torch. The ranks are those of ``ddplint.verify``; what each measures is in ``ddplint.cost_rank``.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import ddplint
from ddplint.analysis import Analysis, Rehearsal
from ddplint.checking import Options, Subject, analysed
from ddplint.checks.wording import count, percent, size
from ddplint.errors import DdplintError
from ddplint.verify import WIDTH, Job, Ranks, Say, Timing

FORMATS = ("text", "json")
SCHEMA_VERSION = 1
RANKS = 2  # Options.ranks of those that are started for it
STEPS = 40  # of each kind, timed
OFF, ON = "find_unused_parameters=False", "find_unused_parameters=True"
# A rank holds the model twice, each with gradients and with DDP's buckets, then AdamW's two moments beside one of them.
COPIES = 2 * 3 + 2


@dataclass(frozen=True, slots=True)
class Wrapped:
    """What rank 0 measured of one wrap.

    ``seconds`` of each timed step: forward, loss and backward, from a barrier to the end of backward. ``buckets``: the bytes
    of each that DDP reduces in a step, and ``rebuilt``, whether it made them anew after the first (both from
    ``DistributedDataParallel._get_ddp_logging_data``). ``reduces``: the elements of each of a step's all-reduces over gloo,
    as PyTorch's profiler saw them; ``search``: seconds of its event ``search_unused_parameters``, of each profiled step.
    ``unused_bytes``: of the parameters that DDP itself found unused in a step.
    """

    seconds: tuple[float, ...]
    buckets: tuple[int, ...]
    rebuilt: bool
    reduces: tuple[int, ...]
    search: tuple[float, ...]
    unused_bytes: int


@dataclass(frozen=True, slots=True)
class Cost:
    """One subject's cost. ``nodes``, ``edges``: autograd's graph behind what forward returned, as DDP's reducer walks it.

    ``off`` is None where the target can't run with the flag off, and ``why_not`` says so. ``dead``: the parameters that no
    path uses, which are frozen in ``off`` and not in ``on``. ``optimizer_bytes``: the state that AdamW had after a step
    of ``on``; ``dead_optimizer_bytes``: of it, what belongs to the dead; ``dead_gradients``: how many of those had a
    gradient then; all three None where the target's own step clears gradients. ``redirected``: the code asks for a GPU, and
    each of its torch calls went through ddplint.
    """

    title: str
    ckpt: str | None
    target: str
    torch_version: str
    nodes: int
    edges: int
    on: Wrapped
    off: Wrapped | None
    why_not: str
    dead: tuple[str, ...]
    dead_bytes: int
    weight_bytes: int
    optimizer_bytes: int | None
    dead_optimizer_bytes: int | None
    dead_gradients: int | None
    redirected: bool
    threads: int  # that each process computes with


def measured(subject: Subject, options: Options, ranks: Ranks, *, steps: int = STEPS, say: Say | None = None) -> Cost:
    """The cost of the flag to ``subject``, measured on ``ranks``, which are RANKS.

    ``options.timeout``, in seconds, is for the analysis, then for the measuring.

    Raises DdplintError where it can't be analysed, does not run with the flag on, or is too large for this machine.
    """
    analysis = analysed(subject, replace(options, ranks=RANKS), rehearse=True)
    rehearsal = analysis.rehearsal
    if rehearsal is None:
        why = next((notice for notice in analysis.notices if notice.startswith("not rehearsed")), "not rehearsed")
        raise DdplintError(f"whether DDP runs it is not known: {why}", where=analysis.target)
    if rehearsal.outcomes[ON] != "ok":
        raise DdplintError(
            f"it does not run with {ON} ({rehearsal.outcomes[ON]}), so there is no cost to measure",
            where=analysis.target,
            fix="`ddplint check` says why",
        )
    weights = sum(p.bytes for p in analysis.parameters)
    refuse_too_large(weights, free_memory(), analysis.target)
    dead = [p for p in analysis.parameters if p.trainable and p.usage == "never"]
    why_not = _why_not(rehearsal, analysis)
    timing = Timing(tuple(p.name for p in dead), off=not why_not, steps=steps)
    job = Job(subject.target, [], 0, None, options.timeout, ("both wraps" if timing.off else ON,), timing)
    (real,) = ranks.run(job, say or (lambda setting, real: None))
    if real.measured is None:
        raise DdplintError(f"two real processes do not run it: {real.outcome}: {real.detail}", where=analysis.target)
    found = real.measured
    return Cost(
        title=subject.title,
        ckpt=subject.rules.name if subject.rules else None,
        target=analysis.target,
        torch_version=analysis.torch_version,
        nodes=found["nodes"],
        edges=found["edges"],
        on=_wrapped(found["on"]),
        off=_wrapped(found["off"]) if found["off"] is not None else None,
        why_not=why_not,
        dead=tuple(p.name for p in dead),
        dead_bytes=sum(p.bytes for p in dead),
        weight_bytes=sum(p.bytes for p in analysis.parameters if p.trainable),
        optimizer_bytes=found["optimizer_bytes"],
        dead_optimizer_bytes=found["dead_optimizer_bytes"],
        dead_gradients=found["dead_gradients"],
        redirected=found["redirected"],
        threads=found["threads"],
    )


def _why_not(rehearsal: Rehearsal, analysis: Analysis) -> str:
    """Why the flag can't be off, "" if it can once what is never used is frozen."""
    if rehearsal.outcomes[OFF] == "ok" or rehearsal.frozen == "ok":
        return ""
    varying = sum(p.trainable and p.usage == "sometimes" for p in analysis.parameters)
    because = f" ({count(varying, 'parameter')} used on some paths only)" if varying else ""
    if rehearsal.frozen is None:
        return f"DDP ends in {rehearsal.outcomes[OFF]}{because}"
    return f"DDP ends in {rehearsal.frozen}, also once what no path uses is frozen{because}"


def _wrapped(data: dict[str, Any]) -> Wrapped:
    made: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return Wrapped(**made)


def free_memory() -> int:
    """The bytes of memory that processes can have without swapping; 0 where the system does not say."""
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        names = os.sysconf_names
        known = "SC_AVPHYS_PAGES" in names and "SC_PAGE_SIZE" in names
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else 0


def refuse_too_large(weights: int, free: int, target: str) -> None:
    """Raise DdplintError if ``weights``, in bytes, leave no room for two ranks in ``free`` bytes (0: not known)."""
    need = RANKS * COPIES * weights
    if free and need > free:
        raise DdplintError(
            f"the model is too large to be measured here: {size(weights)} of weights take {size(need)} in two processes "
            f"(twice the model with gradients and buckets in each, and AdamW's state), and {size(free)} are free",
            where=target,
            fix="name a target with fewer layers of the same kind",
        )


# ---------------------------------------------------------------------- reports


def render(format: str, cost: Cost) -> str:
    """``cost`` in one of FORMATS, ending in a newline."""
    if format == "json":
        return json.dumps(_document(cost), indent=2) + "\n"
    return "".join(f"{line}\n" for paragraph in _told(cost) for line in _wrap(paragraph))


def _wrap(paragraph: str) -> list[str]:
    if paragraph.startswith("    "):
        return [paragraph]
    indent = "  " if paragraph.startswith("  ") else ""
    return textwrap.wrap(paragraph.strip(), WIDTH, initial_indent=indent, subsequent_indent=indent * 2) or [""]


def _told(cost: Cost) -> Iterator[str]:
    on, off = cost.on, cost.off
    yield f"{cost.title}: {_verdict(cost)}"
    machine = f"this machine's CPU ({platform.machine()}, {os.cpu_count()} cores)"
    yield f"  {RANKS} processes over gloo, {count(cost.threads, 'thread')} each, on {machine}, torch {cost.torch_version}"
    yield ""
    yield f"a step (forward, loss and backward on the first example inputs; {len(on.seconds)} of each, by turns)"
    yield f"    {'':44}{'median':>10}{'quartiles':>22}"
    for name, wrapped in ((_as_it_is(cost), on), (_frozen(cost), off)):
        if wrapped is not None:
            low, middle, high = quartiles(wrapped.seconds)
            yield f"    {name:44}{_time(middle):>10}{f'{_time(low)} to {_time(high)}':>22}"
    if off is None:
        yield f"  not timed with the flag off: {cost.why_not}"
    if cost.redirected:
        yield "  the code asks for a GPU: its torch calls were redirected to the CPU, which takes time in every row"
    yield ""
    yield "in each step with the flag on"
    yield f"  graph: DDP walks {cost.nodes:,} nodes and {cost.edges:,} edges, all that is behind what forward returned"
    if on.search:
        low, middle, high = quartiles(on.search)
        yield (
            f"  search: {_time(middle)} (quartiles {_time(low)} to {_time(high)}; the event search_unused_parameters "
            f"in {len(on.search)} profiled steps)"
        )
    else:
        yield "  search: not known, for this PyTorch's profiler shows no event search_unused_parameters"
    yield f"  buckets: {_buckets(on)}" + (f"; with it off {_buckets(off)}" if off is not None else "")
    yield f"  all-reduces: {_reduces(on)}, one to agree on what was used" + (
        f"; with it off {_reduces(off)}" if off is not None else ""
    )
    yield f"  unused: {_unused(cost)}"
    yield f"  optimizer: {_optimizer(cost)}"
    yield ""
    yield (
        "Measured on these processes and inputs, and true of them. On GPUs with nccl compute, launches and all-reduces take "
        "other times and overlap otherwise: the counts and bytes stay, the times do not."
    )


def _verdict(cost: Cost) -> str:
    """What the two medians say, and no more than that."""
    if cost.off is None:
        return f"a step takes {_time(statistics.median(cost.on.seconds))} with the flag on; it can't be off"
    (on_low, on, on_high), (off_low, off, off_high) = quartiles(cost.on.seconds), quartiles(cost.off.seconds)
    what = "the flag and the unused parameters" if cost.dead else "the flag"
    if on_low <= off_high and off_low <= on_high:
        return f"no difference shown: the steps' quartiles with and without {what} overlap"
    more = "more" if on > off else "less"
    share = percent(round(1e9 * abs(on - off)), round(1e9 * off))
    return f"a step took {_time(abs(on - off))} ({share}) {more} with {what}, by the medians"


def _as_it_is(cost: Cost) -> str:
    return "flag on, all parameters as built"


def _frozen(cost: Cost) -> str:
    return f"flag off, the {len(cost.dead)} never used frozen" if cost.dead else "flag off, all parameters as built"


def _buckets(wrapped: Wrapped) -> str:
    """How many, how large, and whether rebuilt in the order in which gradients come."""
    rebuilt = "rebuilt in the order of the gradients" if wrapped.rebuilt else "never rebuilt"
    return f"{len(wrapped.buckets)} ({size(sum(wrapped.buckets))}), {rebuilt}"


def _reduces(wrapped: Wrapped) -> str:
    return f"{len(wrapped.reduces)} ({sum(wrapped.reduces):,} elements)"


def _unused(cost: Cost) -> str:
    found = cost.on.unused_bytes
    if not cost.dead and not found:
        return "nothing: DDP found every parameter used in the step that it recorded"
    share = percent(found, cost.weight_bytes)
    text = f"{size(found)} ({share} of the trainable weights) that DDP found unused and reduces as zeros all the same"
    return f"{text}; on no path used are {count(len(cost.dead), 'parameter')} of {size(cost.dead_bytes)}"


def _optimizer(cost: Cost) -> str:
    if cost.optimizer_bytes is None or cost.dead_optimizer_bytes is None:
        return "not measured, for the target's own step clears the gradients"
    text = f"AdamW's state takes {size(cost.optimizer_bytes)} after a step"
    if not cost.dead:
        return text
    if not cost.dead_optimizer_bytes and not cost.dead_gradients:
        return f"{text}, nothing of it for the never used: DDP leaves their .grad None"
    return f"{text}, {size(cost.dead_optimizer_bytes)} of it for the never used"


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper one."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _time(seconds: float) -> str:
    for unit, least in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= least:
            return f"{seconds / least:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def _document(cost: Cost) -> dict[str, Any]:
    found = asdict(cost)
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "ddplint", "version": ddplint.__version__, "torch": found.pop("torch_version")},
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "backend": "gloo", "ranks": RANKS},
        "result": {
            **found,
            "on": _measures(cost.on),
            "off": _measures(cost.off) if cost.off is not None else None,
        },
    }


def _measures(wrapped: Wrapped) -> dict[str, Any]:
    low, middle, high = quartiles(wrapped.seconds)
    return {**asdict(wrapped), "median": middle, "quartiles": [low, high]}
