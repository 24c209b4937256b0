"""All paths: every fork of the target answered each way, further inputs, seeds and steps, until nothing new appears.

A path is a ``Plan``. The first is the target as it is; then come its further inputs (``variants``), further seeds where
something is drawn, further steps where a step changes the model's state, and, fork by fork, each answer forced for every
read at that place. Forks that show only under a forced answer are explored under it. A path that raises is infeasible:
counted, and left out of the verdict.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace

from ddplint.errors import DdplintError
from ddplint.stages import say
from ddplint.target import Target
from ddplint.trace.choices import TOGETHER, answers_at, answers_in_turn, covering
from ddplint.trace.devices import TraceDevice
from ddplint.trace.recorder import DRAWING
from ddplint.trace.run import Built, Path, no_collection, trace, walk
from ddplint.trace.state import State
from ddplint.trace.values import Answer, Answers, Asked, Fork, NoValue, Plan

SEEDS = 3  # further seeds, where something is drawn
INTEGERS = 32  # the largest integer that is tried at a fork
DEFAULT_PATHS = 256
ATTEMPTS = 2  # paths on which a fork is tried, while all its answers end in errors
RAISED = 8  # paths that raise of which the forks are answered too: another answer may end well
OTHERWISE = 3  # forks that are answered otherwise, one after another, on a path that raises after them
BASES = 4  # inputs and steps that forks are answered together with
PARENTS = 4  # what is spent on one path that takes what none uses is this part of what all forks together get
CHOICES = 4  # answers of each fork that take part in this


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one feasible path came to. ``evidence``: whether anything was forced on it."""

    plan: Plan
    step: int
    used: frozenset[str]
    from_outputs: frozenset[str]
    from_loss: frozenset[str]
    asked: dict[Fork, Asked]
    touched: frozenset[str] = frozenset()  # the parameters that an operation took, used or not

    @property
    def observed(self) -> bool:
        """Whether this path was run without a forced answer."""
        return not self.plan.answers

    def answer(self, fork: Fork) -> Answer | None:
        """What all reads at ``fork`` got: by force, or of themselves (see ``gave``); None if that is not one answer."""
        return dict(self.plan.answers).get(fork, self.gave(fork))

    def gave(self, fork: Fork) -> Answer | None:
        """The one value that all reads at ``fork`` gave of themselves, if that is a boolean or a whole number."""
        asked = self.asked.get(fork)
        if asked is None or fork in dict(self.plan.answers) or fork.domain not in ("bool", "int"):
            return None
        alike = len(asked.values) == asked.count and len(set(asked.values)) == 1
        return asked.values[0] if alike else None


@dataclass(slots=True)
class Exploration:
    """Every path found. ``first`` is the target as it is, with its recording; of the others the outcome is kept."""

    first: Path
    outcomes: list[Outcome] = field(default_factory=list)
    infeasible: list[tuple[Plan, str]] = field(default_factory=list)
    complete: bool = True


@dataclass(frozen=True, slots=True)
class _Tried:
    """How a run ended: well, at a loss without a gradient, or in any other error."""

    outcome: Outcome | None = None
    cut_short: Outcome | None = None
    broken: Outcome | None = None


Choice = tuple[Fork, Answer]
Judge = Callable[[Path], frozenset[str]]


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
        self._done: dict[object, _Tried] = {}
        self._known_usage: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()  # used on all paths, on any
        self._fixed: frozenset[int] = frozenset()  # ids of the model's tensors that no step writes
        self._unwatched = False  # something drew by names that were bound before draws were watched: no fork, but seeds
        self._remembers = False  # a step leaves more behind than BatchNorm does
        self._first_asked: dict[Fork, Asked] = {}  # every fork that was come to, as it was first asked
        # The answers that can be given, in order, and whether one led to an end: where the loss had no gradient, it may
        # have one on another path.
        self._possible: dict[Fork, dict[Answer, bool]] = {}
        self._asked: dict[Fork, Asked] = {}  # of the run in progress
        self._stuck: list[Outcome] = []  # later steps whose loss had no gradient
        self._raised: list[Outcome] = []  # the first that ended in any other error
        self._cut_short: Outcome | None = None  # the last run, if its loss had no gradient
        self._broken: Outcome | None = None  # the last run, if it ended in any other error

    def run(self, plan: Plan, *, step: int = 0) -> tuple[Path, Outcome]:
        """One path. ``step`` 0 starts from the first state, later ones go on from the step before."""
        say(f"path {self.runs + 1} on rank {self.rank}")
        if step == 0:
            self.state.restore()
            for before in range(plan.after):
                walk(self.target, self.built, self.device, plan, Answers({}, default=self.default), reseed=before == 0)
        answers = Answers(dict(plan.answers), default=self.default)
        self._asked = answers.asked
        spell = not self.runs and not self.rank
        path = trace(self.target, self.built, self.device, plan, answers, reseed=step + plan.after == 0, spell=spell)
        self.runs += 1
        for parameter in self.built.parameters.values():
            parameter.grad = None
        with no_collection():
            used = self.judge(path)
        return path, Outcome(
            plan, step, used, path.from_outputs, path.walked, answers.asked, frozenset(path.recording.parameters)
        )

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
        watched = any(fork.domain in ("draw", "choice") for fork in outcome.asked)
        self._unwatched = path.drew and not watched
        self._known_usage = outcome.used, outcome.used
        return Exploration(path, [outcome])

    def all(self, found: Exploration, *, steps: int) -> Exploration:
        """``found`` (from ``first``) completed by every other path, in an order that never varies."""
        base = found.outcomes[0]
        changed = self.state.changed()
        self._remembers, self._fixed = changed.lasting, changed.untouched
        if changed:
            self._observe(found, base.plan, range(1, steps))
        if self.target.step is None:
            for index in range(1, len(self.target.inputs)):
                self._try(found, replace(base.plan, inputs=index))
        if self._unwatched or (base.asked and self._draws(found)):
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
                if self._cut_short is not None:
                    self._stuck.append(self._cut_short)
                return

    def _try(self, found: Exploration, plan: Plan, *, step: int = 0) -> Outcome | None:
        """Run ``plan`` if the budget lets it, and keep what it came to. None if it could not be run to its end."""
        key = (plan.inputs, plan.seed, step, plan.after, frozenset(plan.answers))
        if key not in self._done:
            if self.runs >= self.limit:
                found.complete = False
                self._cut_short = self._broken = None
                return None
            self._done[key] = self._tried(found, plan, step)
        tried = self._done[key]
        self._cut_short, self._broken = tried.cut_short, tried.broken
        return tried.outcome

    def _tried(self, found: Exploration, plan: Plan, step: int) -> _Tried:
        """What a run of ``plan`` comes to, kept in ``found``."""
        try:
            _, outcome = self.run(plan, step=step)
        except NoValue as error:
            if self.default is None:
                raise  # the other device can go on
            found.infeasible.append((plan, str(error)))
            found.complete = False  # not run, and not because the target refuses it
            self.runs += 1
            return _Tried()
        except DdplintError as error:
            if not plan.answers and not step and not plan.seed:
                raise DdplintError(
                    error.what, where=f"with example inputs {plan.inputs + 1}: {error.where}", fix=error.fix
                ) from error
            found.infeasible.append((plan, str(error)))
            self.runs += 1
            nothing: frozenset[str] = frozenset()
            stopped = Outcome(plan, step, nothing, nothing, nothing, self._asked)  # for the forks it came to
            if error.where == "loss":  # forward came to its end
                return _Tried(cut_short=stopped)
            if len(self._raised) < RAISED:
                self._raised.append(stopped)
            return _Tried(broken=stopped)
        found.outcomes.append(outcome)
        always, ever = self._known_usage
        self._known_usage = always & outcome.used, ever | outcome.used
        return _Tried(outcome)

    def _try_otherwise(self, found: Exploration, plan: Plan) -> Outcome | None:
        """``plan``; where it raises, with the last fork that it came to answered otherwise: the branch there may raise."""
        outcome = self._try(found, plan)
        for _ in range(OTHERWISE):
            stopped = self._broken
            if outcome is not None or stopped is None or not stopped.asked:
                break
            last = next(reversed(stopped.asked))
            gave = stopped.gave(last)
            if last.domain != "bool" or gave is None:
                break
            outcome = self._try(found, self._forced(stopped, last, not gave))
        return outcome

    def _forks(self, found: Exploration) -> None:
        """Every fork answered each way: from the paths as they are, from those that use the most and the fewest, from those
        that take a parameter and give it no gradient, then any few of them together.

        A fork is answered where it was first asked. Where every answer there ends in an error it may be asked again on
        another path. The last steps find what takes several answers at once: a branch within another's alternative, of
        which neither is taken by the example inputs; flags that are read apart and tested together.
        """
        known: set[Fork] = set()  # those that are answered, or are going to be
        attempts: Counter[Fork] = Counter()
        queue: deque[tuple[Fork, Outcome]] = deque()

        def discover(outcome: Outcome) -> None:
            for fork, asked in outcome.asked.items():
                constant = asked.held is not None and asked.held <= self._fixed
                self._first_asked.setdefault(fork, asked)
                if fork not in known and not constant:
                    known.add(fork)
                    queue.append((fork, outcome))

        def drain() -> None:
            while queue and found.complete:
                fork, parent = queue.popleft()
                attempts[fork] += 1
                self._answered(found, fork, parent, discover)
                ended = any(self._possible.get(fork, {}).values())
                if not ended and attempts[fork] < ATTEMPTS and self._cut_short is not None:
                    known.discard(fork)

        for outcome in [*found.outcomes, *self._stuck]:
            discover(outcome)
        drain()

        def again(parent: Outcome) -> None:
            """Every fork once more, from ``parent``."""
            given = dict(parent.plan.answers)
            queue.extend((fork, parent) for fork in parent.asked if fork not in given and fork in self._possible)
            drain()

        for outcome in self._raised:
            discover(outcome)
        drain()
        for extreme in (max, min):
            outermost = extreme(found.outcomes, key=lambda outcome: len(outcome.used))
            if not outermost.observed:
                again(outermost)
        asked_of = set(found.outcomes[0].touched)  # its forks were answered from there
        while parent := _wasted(found.outcomes, asked_of):
            asked_of |= parent.touched
            again(parent)
            if parent is _wasted([parent], self._known_usage[1]):
                self._together(found, discover, parent)
                drain()
        self._together(found, discover, None)
        drain()

    def _together(self, found: Exploration, discover: Callable[[Outcome], None], parent: Outcome | None) -> None:
        """Forks answered together so that any few of these have met (``covering``): with what is forced on ``parent``; if it
        is None, with each of the inputs and steps.
        """
        given = dict(parent.plan.answers) if parent else {}
        options: list[list[Outcome | Choice]] = [
            [(fork, answer) for answer in [*tried][:CHOICES]] for fork, tried in self._possible.items() if fork not in given
        ]
        bases: list[Outcome | Choice] = [
            o for o in (*found.outcomes, *self._stuck) if o.observed and (o.plan.seed == 0) and self._is_base(o)
        ]
        if parent is not None:
            bases = [parent]
        options = [choices for choices in (bases[:BASES], *options) if len(choices) > 1] if options else []
        operations = len(found.first.recording.ops)
        limit = next(runs for most, runs in TOGETHER if operations <= most) // (1 if parent is None else PARENTS)
        for combination in covering(options, limit=limit):
            joint = next((chosen for chosen in combination if isinstance(chosen, Outcome)), parent or found.outcomes[0])
            for chosen in combination:
                if isinstance(chosen, Outcome) or chosen[0] in dict(joint.plan.answers):  # it reads the same as one before
                    continue
                joint = replace(joint, plan=self._forced(joint, *chosen), step=0)
            tried = self._try(found, joint.plan)
            if tried is not None:
                discover(tried)

    def _is_base(self, outcome: Outcome) -> bool:
        """Whether forks may come to something else from ``outcome``: its inputs are others, or its step starts anew."""
        return outcome.step == 0 or self._remembers

    def _answered(self, found: Exploration, fork: Fork, parent: Outcome, discover: Callable[[Outcome], None]) -> None:
        """Try each answer at ``fork``, all else as on ``parent``.

        A fork that had answers before gets these, no others.
        """
        asked = parent.asked[fork]
        here: set[frozenset[str]] = set()  # what the answers at this fork came to

        def answered(answer: Answer) -> Outcome | None:
            plan = self._forced(parent, fork, answer)
            tried = parent if parent.gave(fork) == answer else self._try_otherwise(found, plan)
            if tried is not None:
                discover(tried)
                here.add(tried.used)
                self._possible.setdefault(fork, {})[answer] = True
            elif self._cut_short is not None:
                discover(self._cut_short)
                self._possible.setdefault(fork, {}).setdefault(answer, False)
            return tried

        before = self._possible.get(fork, {})
        known_answers = before if any(before.values()) else None
        answers, mixed = deque(known_answers or answers_at(fork, asked)), known_answers is not None
        known = None
        while answers:
            failed = answered(answers.popleft()) is None
            if failed and fork.domain in ("bool", "mask") and asked.count > 1 and not mixed:
                mixed, known = True, self._known_usage  # one answer for all reads can't be: some of each
                answers += ("even", "odd")
        if known_answers is not None:
            return
        if fork.domain == "int" and asked.among is None and answers_at(fork, asked) == (0,):
            self._integers(found, fork, parent, here, discover)
        first, others = answers_in_turn(fork, asked)
        known, alike = known or self._known_usage, len(here)
        for answer in first:
            answered(answer)
        if known != self._known_usage or (mixed and len(here) > alike):
            for answer in others:
                answered(answer)

    def _integers(
        self, found: Exploration, fork: Fork, parent: Outcome, seen: set[frozenset[str]], discover: Callable[[Outcome], None]
    ) -> None:
        """1, 2, 3, … at an integer's fork, until a path raises or two values in a row bring nothing new."""
        idle = 0
        for value in range(1, INTEGERS + 1):
            outcome = self._try_otherwise(found, self._forced(parent, fork, value))
            if outcome is None:
                if self._cut_short is not None:
                    continue  # it came to the loss: another value may do
                return
            self._possible.setdefault(fork, {})[value] = True
            idle = idle + 1 if outcome.used in seen else 0
            seen.add(outcome.used)
            discover(outcome)
            if idle == 2:
                return

    def _forced(self, parent: Outcome, fork: Fork, answer: Answer) -> Plan:
        """``parent``'s plan with ``answer`` at ``fork``, and at every other fork that reads the very same value."""
        forced: dict[Fork, Answer] = {}
        asked = {**self._first_asked, **parent.asked}
        read = asked[fork].expressions
        for other, like in asked.items():
            if other == fork or not read or [h for h, _ in like.expressions] != [h for h, _ in read]:
                continue
            if isinstance(answer, bool):
                forced[other] = answer if like.expressions[0][1] == read[0][1] else not answer
            elif not isinstance(answer, str) or other.domain == fork.domain:
                forced[other] = answer
        kept = {f: a for f, a in parent.plan.answers if f != fork and f not in forced}
        after = parent.plan.after + parent.step  # a fork of a later step is asked there
        return replace(parent.plan, answers=(*kept.items(), *forced.items(), (fork, answer)), after=after)


def _wasted(outcomes: Sequence[Outcome], asked_of: Set[str]) -> Outcome | None:
    """The path that takes the most parameters which none uses, those in ``asked_of`` left out; None if there is none."""
    used = frozenset().union(*(o.used for o in outcomes)) | asked_of
    wasted = max(outcomes, key=lambda outcome: len(outcome.touched - used))
    return wasted if wasted.touched - used else None
