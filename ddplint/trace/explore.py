"""All paths: every fork of the target answered each way, further inputs, seeds and steps, until nothing new appears.

A path is a ``Plan``. The first is the target as it is; then come its further inputs (``variants``), further seeds where
something is drawn, further steps where a step changes the model's state, and, fork by fork, each answer forced for every
read at that place. Forks that show only under a forced answer are explored under it. A path that raises is infeasible:
counted, and left out of the verdict.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from ddplint.errors import DdplintError
from ddplint.target import Target
from ddplint.trace.devices import TraceDevice
from ddplint.trace.draws import FEW
from ddplint.trace.recorder import DRAWING
from ddplint.trace.run import Built, Path, trace, walk
from ddplint.trace.values import Answer, Answers, Asked, Fork, NoValue, Plan

SEEDS = 3  # further seeds, where something is drawn
INTEGERS = 32  # the largest integer that is tried at a fork
DEFAULT_PATHS = 256
ATTEMPTS = 2  # paths on which a fork is tried, while all its answers end in errors
ROUNDS = 2  # times that forks are answered anew from the path that uses the most, and from the one that uses the fewest


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one feasible path came to. ``evidence``: whether anything was forced on it."""

    plan: Plan
    step: int
    used: frozenset[str]
    from_outputs: frozenset[str]
    from_loss: frozenset[str]
    asked: dict[Fork, Asked]

    @property
    def observed(self) -> bool:
        """Whether this path was run without a forced answer."""
        return not self.plan.answers


@dataclass(slots=True)
class Exploration:
    """Every path found. ``first`` is the target as it is, with its recording; of the others the outcome is kept."""

    first: Path
    outcomes: list[Outcome] = field(default_factory=list)
    infeasible: list[tuple[Plan, str]] = field(default_factory=list)
    complete: bool = True


Judge = Callable[[Path], frozenset[str]]


class State:
    """A model's own state, to start each path from the same place: buffers, parameters' values, plain attributes."""

    def __init__(self, built: Built) -> None:
        model = built.model
        self._modules = [(m, self._attributes(m)) for m in model.modules()]
        self._tensors = [(t, t.detach().clone(), t._version) for t in (*model.parameters(), *model.buffers())]
        known = ((t, built.twins.of(t)) for t in model.buffers())
        self._twins = [(twin, twin.clone()) for t, twin in known if twin is not None and t.is_meta]

    @staticmethod
    def _attributes(module: nn.Module) -> dict[str, Any]:
        plain = (list, dict, set, deque)
        return {k: copy.copy(v) if isinstance(v, plain) else v for k, v in vars(module).items()}

    def changed(self) -> bool:
        """Whether a step left anything different."""
        if any(t._version != version for t, _, version in self._tensors):
            return True
        for module, before in self._modules:
            now = vars(module)
            if now.keys() != before.keys():
                return True
            for key, value in before.items():
                if now[key] is not value and not _same(now[key], value):
                    return True
        return False

    def restore(self) -> None:
        """Put everything back."""
        for module, before in self._modules:
            now = vars(module)
            for key in [k for k in now if k not in before]:
                del now[key]
            for key, value in before.items():
                if now.get(key) is not value:
                    now[key] = copy.copy(value) if isinstance(value, (list, dict, set, deque)) else value
        with torch.no_grad():
            for tensor, value, version in self._tensors:
                if tensor._version != version and not tensor.is_meta:
                    tensor.detach().copy_(value)
                tensor.grad = None
            for twin, value in self._twins:
                twin.copy_(value)
        self._tensors = [(t, value, t._version) for t, value, _ in self._tensors]


def _same(one: Any, other: Any) -> bool:
    """Whether two plain values are equal; tensors only if they are one object."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, (list, deque)):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, (bool, int, float, str, bytes, type(None), set)):
        return bool(one == other)
    return one is other


def answers_at(fork: Fork, asked: Asked) -> Sequence[Answer]:
    """The constant answers to try at ``fork``; integers go on from here while they bring something new."""
    if fork.domain in ("bool", "mask"):
        return (True, False)
    if fork.domain == "draw":
        return ("low", "high")
    if fork.domain == "choice":
        return tuple(range(fork.choices)) if 0 < fork.choices <= FEW else ("low", "high")
    if asked.listed and not asked.free:
        return ("even", "odd")  # computed elements depend on each other: some zero, never all of them
    if fork.domain == "float":
        negative = any(isinstance(v, (int, float)) and v < 0 for v in asked.values)
        return (-16.0, 16.0) if negative else (0.0, 16.0)
    return (0,)


class Explorer:
    """Runs the plans of one target on one rank, each from the same state of one built model."""

    def __init__(
        self,
        target: Target,
        built: Built,
        device: TraceDevice,
        judge: Judge,
        *,
        rank: int = 0,
        limit: int = DEFAULT_PATHS,
        default: dict[str, Answer] | None = None,
    ) -> None:
        self.target, self.built, self.device, self.judge = target, built, device, judge
        self.rank, self.limit, self.default = rank, limit, default
        self.state = State(built)
        self.runs = 0
        self._done: dict[object, Outcome | None] = {}
        self._asked: dict[Fork, Asked] = {}  # of the run in progress
        self._cut_short: Outcome | None = None  # the last run, if its loss had no gradient

    def run(self, plan: Plan, *, step: int = 0) -> tuple[Path, Outcome]:
        """One path. ``step`` 0 starts from the first state, later ones go on from the step before."""
        if step == 0:
            self.state.restore()
        answers = Answers(dict(plan.answers), default=self.default)
        self._asked = answers.asked
        spell = not self.runs and not self.rank
        path = trace(self.target, self.built, self.device, plan, answers, reseed=step == 0, spell=spell)
        self.runs += 1
        for parameter in self.built.model.parameters():
            parameter.grad = None
        used = self.judge(path)
        return path, Outcome(plan, step, used, path.from_outputs, path.walked, answers.asked)

    def like(self, other: Outcome) -> Outcome | None:
        """``other``, the first path of another rank, as this rank's own if both hold the same parameters in autograd's
        graph and ask the same; None if they differ. It takes a forward and no record.
        """
        answers = Answers({}, default=self.default)
        plan = replace(other.plan, rank=self.rank)
        walked = walk(self.target, self.built, self.device, plan, answers)
        self.runs += 1
        if walked != other.from_loss or answers.asked.keys() != other.asked.keys():
            return None
        return replace(other, plan=plan)

    def first(self) -> Exploration:
        """The target as it is. Raises what the run raises."""
        path, outcome = self.run(Plan(rank=self.rank))
        return Exploration(path, [outcome])

    def all(self, found: Exploration, *, steps: int) -> Exploration:
        """``found`` (from ``first``) completed by every other path, in an order that never varies."""
        base = found.outcomes[0]
        if self.state.changed():
            self._observe(found, base.plan, range(1, steps))
        if self.target.step is None:
            for index in range(1, len(self.target.inputs)):
                self._try(found, replace(base.plan, inputs=index))
        if base.asked and self._draws(found):
            for seed in range(1, SEEDS + 1):
                self._try(found, replace(base.plan, seed=seed))
        self._forks(found)
        return found

    def _draws(self, found: Exploration) -> bool:
        """Whether anything random was drawn on the first path."""
        if any(fork.domain in ("draw", "choice") for fork in found.outcomes[0].asked):
            return True
        return any(op.name in DRAWING for op in found.first.recording.ops.values())

    def _observe(self, found: Exploration, plan: Plan, steps: Sequence[int]) -> None:
        for step in steps:
            if not self._try(found, plan, step=step):
                return

    def _try(self, found: Exploration, plan: Plan, *, step: int = 0) -> Outcome | None:
        """Run ``plan`` if the budget lets it, and keep what it came to. None if it could not be run to its end."""
        key = (plan.inputs, plan.seed, step, frozenset(plan.answers))
        if key in self._done:
            return self._done[key]
        if self.runs >= self.limit:
            found.complete = False
            return None
        self._done[key] = self._cut_short = None
        try:
            _, outcome = self.run(plan, step=step)
        except NoValue as error:
            if self.default is None:
                raise  # the other device can go on
            found.infeasible.append((plan, str(error)))
            found.complete = False  # not run, and not because the target refuses it
            self.runs += 1
            return None
        except DdplintError as error:
            if not plan.answers and not step and not plan.seed:
                raise DdplintError(
                    error.what, where=f"with example inputs {plan.inputs + 1}: {error.where}", fix=error.fix
                ) from error
            found.infeasible.append((plan, str(error)))
            self.runs += 1
            nothing: frozenset[str] = frozenset()
            if error.where == "loss":  # forward came to its end
                self._cut_short = Outcome(plan, step, nothing, nothing, nothing, self._asked)  # for the forks it came to
            return None
        found.outcomes.append(outcome)
        self._done[key] = outcome
        return outcome

    def _forks(self, found: Exploration) -> None:
        """Every fork answered each way: from the paths as they are, then from those that use the most and the fewest.

        A fork is answered where it was first asked. Where every answer there ends in an error it may be asked again on
        another path. The two last steps find what takes two answers at once: a branch within another's alternative, of
        which neither is taken by the example inputs.
        """
        known: set[Fork] = set()
        attempts: Counter[Fork] = Counter()
        possible: set[Fork] = set()  # those with an answer that leads to an end
        queue: deque[tuple[Fork, Outcome]] = deque()

        def discover(outcome: Outcome) -> None:
            for fork in outcome.asked:
                if fork not in known:
                    known.add(fork)
                    queue.append((fork, outcome))

        def drain() -> None:
            while queue and found.complete:
                fork, parent = queue.popleft()
                attempts[fork] += 1
                if self._answered(found, fork, parent, discover):
                    possible.add(fork)
                elif attempts[fork] < ATTEMPTS and self._cut_short is not None:
                    known.discard(fork)

        for outcome in list(found.outcomes):
            discover(outcome)
        alike = [fork for fork in found.outcomes[0].asked if fork.domain == "bool"]
        drain()
        if len(alike) > 1:  # flags that are read apart and tested together
            for answer in (True, False):
                together = found.outcomes[0]
                for fork in alike:
                    if fork not in dict(together.plan.answers):
                        together = replace(together, plan=_forced(together, fork, answer))
                self._try(found, together.plan)
        for extreme in (max, min):
            for _ in range(ROUNDS):
                outermost = extreme(found.outcomes, key=lambda outcome: len(outcome.used))
                if outermost.observed:
                    break
                given = dict(outermost.plan.answers)
                queue.extend((fork, outermost) for fork in outermost.asked if fork not in given and fork in possible)
                drain()

    def _answered(self, found: Exploration, fork: Fork, parent: Outcome, discover: Callable[[Outcome], None]) -> bool:
        """Try each answer at ``fork``, all else as on ``parent``. Whether one of them could be run to its end."""
        asked = parent.asked[fork]
        here: set[frozenset[str]] = set()  # what the answers at this fork came to
        answers, mixed = deque(answers_at(fork, asked)), False
        while answers:
            tried = self._try(found, _forced(parent, fork, answers.popleft()))
            if tried is not None:
                discover(tried)
                here.add(tried.used)
                continue
            if self._cut_short is not None:
                discover(self._cut_short)
            if fork.domain == "bool" and asked.count > 1 and not mixed:
                mixed = True  # one answer for all reads can't be: some of each
                answers += ("even", "odd")
        if fork.domain == "int" and answers_at(fork, asked) == (0,):
            self._integers(found, fork, parent, here, discover)
        return bool(here)

    def _integers(
        self, found: Exploration, fork: Fork, parent: Outcome, seen: set[frozenset[str]], discover: Callable[[Outcome], None]
    ) -> None:
        """1, 2, 3, … at an integer's fork, until a path raises or two values in a row bring nothing new."""
        idle = 0
        for value in range(1, INTEGERS + 1):
            outcome = self._try(found, _forced(parent, fork, value))
            if outcome is None:
                return
            idle = idle + 1 if outcome.used in seen else 0
            seen.add(outcome.used)
            discover(outcome)
            if idle == 2:
                return


def _forced(parent: Outcome, fork: Fork, answer: Answer) -> Plan:
    """``parent``'s plan with ``answer`` at ``fork``, and at every other fork that read the very same value there."""
    forced: dict[Fork, Answer] = {}
    read = parent.asked[fork].expressions
    if read and isinstance(answer, bool):
        for other, asked in parent.asked.items():
            if other != fork and [h for h, _ in asked.expressions] == [h for h, _ in read]:
                forced[other] = answer if asked.expressions[0][1] == read[0][1] else not answer
    kept = {f: a for f, a in parent.plan.answers if f != fork and f not in forced}
    return replace(parent.plan, answers=(*kept.items(), *forced.items(), (fork, answer)))
