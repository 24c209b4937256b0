"""The truth about a program of ``tests/programs.py`` by real backward runs, and ddplint's answer held against it.

The oracle knows nothing of ddplint: it runs forward, loss and backward on the CPU and looks at ``.grad is None``.
*Natural* runs are a new model a seed, each input of the program, three consecutive steps. *Forced* runs answer the
program's forks (``choose``) one way, as data or draws could: they show what a ``possible`` may claim.
"""

from __future__ import annotations

import itertools
import linecache
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy
import torch

from ddplint.analyse import analyse
from ddplint.analysis import Analysis
from ddplint.errors import DdplintError
from ddplint.request import Request
from ddplint.rules import TargetSpec
from tests import real_ddp
from tests.programs import Program, source

STEPS = 3
SEEDS = 6  # of natural runs, where anything is drawn or read
FURTHER = 24  # further seeds, asked only about what a `sometimes` claims
BATCH = 4  # of them at a time, as long as something is unsure
FORCED = 48  # assignments of the forks' answers

# The CPU lacks a kernel, which says nothing about a GPU: what ddplint answers on meta is held against nothing.
NO_KERNEL = re.compile(r"not implemented|Could not run|no kernel", re.IGNORECASE)

LOOPS = 64  # forced answers at one place in one step

Kind = Literal[
    "false-all-clear",  # ddplint always, unused in a natural run
    "false-alarm",  # ddplint never, used in a natural run
    "unseen",  # ddplint sometimes and observed, and no run of the oracle shows both
    "impossible",  # ddplint sometimes and possible, and no run, forced ones included, shows both
    "disagreement",  # DDP902
    "names",  # not the parameters that the model has, or not those that train
    "wrong-error",  # a DdplintError about a program that runs
    "no-error",  # an answer about a program that does not run
    "crash",  # any other exception
    "missed",  # counted apart: always or never, and a forced run shows the other
]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One thing that ddplint and the runs say differently. ``what`` names the parameter or the error."""

    kind: Kind
    what: str


@dataclass(slots=True)
class Runs:
    """What a set of runs came to: how many went through, and in how many each parameter got no gradient."""

    count: int = 0
    unused: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def used_in_some(self, name: str) -> bool:
        """Whether some run gave ``name`` a gradient."""
        return self.unused.get(name, 0) < self.count

    def unused_in_some(self, name: str) -> bool:
        """Whether some run left ``name`` without one."""
        return self.unused.get(name, 0) > 0

    def varies(self, name: str) -> bool:
        """Whether both happened."""
        return self.used_in_some(name) and self.unused_in_some(name)

    def with_all(self, other: Runs) -> Runs:
        """These runs and ``other``'s."""
        names = {*self.unused, *other.unused}
        unused = {name: self.unused.get(name, 0) + other.unused.get(name, 0) for name in names}
        return Runs(self.count + other.count, unused, self.errors + other.errors)


@dataclass(slots=True)
class Chooser:
    """``choose`` of a watched program: what its forks get, and which forks there were."""

    forced: Callable[[int, int], Any] | None = None
    sites: dict[int, int] = field(default_factory=dict)  # site -> number of choices
    asked: Counter[int] = field(default_factory=Counter)  # in one step

    def __call__(self, site: int, value: Any, choices: int) -> Any:
        self.sites[site] = choices
        self.asked[site] += 1
        if self.forced is None or self.asked[site] > LOOPS:  # a loop whose condition is forced has to end
            return value
        answer = self.forced(site, choices)
        if answer is None:
            return value
        if isinstance(value, torch.Tensor) and value.dim():
            return torch.full_like(value, bool(answer))
        return answer


_files = itertools.count()


@contextmanager
def imported(text: str, **given: Any) -> Iterator[ModuleType]:
    """``text`` as an imported module that has ``given`` among its globals."""
    name = f"program_{next(_files)}"
    module = ModuleType(name)
    vars(module).update(given)
    sys.modules[name] = module
    try:
        exec(compile(text, f"<{name}>", "exec"), vars(module))
        yield module
    finally:
        del sys.modules[name]


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def _scaled(arguments: Any, factor: float) -> Any:
    args, kwargs = arguments
    scaled = tuple((a.detach() * factor).requires_grad_(a.requires_grad) if torch.is_tensor(a) else a for a in args)
    return scaled, kwargs


class Oracle:
    """Real runs of one program."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.chooser = Chooser()
        self.drawn = False  # whether runs can differ from seed to seed

    def trainable(self) -> dict[str, bool]:
        """First names of all parameters of a new model, and whether each requires grad."""
        with imported(self.text, choose=self.chooser) as module:
            _seed(0)
            return {name: p.requires_grad for name, p in module.build().named_parameters()}

    def natural(self, seeds: range, factors: tuple[float, ...] = (1.0,)) -> tuple[Runs, Runs]:
        """Every input, ``STEPS`` steps, a new model a seed. The second value is of first steps on the first input.

        Errors of first steps on further inputs are among its errors too.
        """
        self.chooser.forced = None
        return self._runs([(seed, factor, None) for seed in seeds for factor in factors])

    def forced(self, count: int, first: int = 0) -> Runs:
        """Runs with the forks answered: all constant answers where they are few, else ``count`` of them, others for each
        ``first``.
        """
        rng = random.Random(first)
        plans: list[Callable[[int, int], Any]] = []
        sites = dict(self.chooser.sites)
        total = 1
        for choices in sites.values():
            total *= choices
        if total <= count:
            every = itertools.product(*(range(choices) for choices in sites.values()))
            plans += [_constant(dict(zip(sites, answers, strict=True)), rng) for answers in every]
        while len(plans) < count:
            if len(plans) % 3 == 2:
                plans.append(_varying(random.Random(first + len(plans))))
            else:
                plans.append(_constant({site: rng.randrange(choices) for site, choices in sites.items()}, rng))
        return self._runs([(seed, 1.0, plan) for seed, plan in enumerate(plans)])[0]

    def _runs(self, plans: list[tuple[int, float, Any]]) -> tuple[Runs, Runs]:
        every, base = Runs(), Runs()
        with imported(self.text, choose=self.chooser) as module, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            makers = [module.inputs] if hasattr(module, "inputs") else [None]
            if hasattr(module, "variants"):
                makers += module.variants()
            for (seed, factor, forced), (number, make) in itertools.product(plans, enumerate(makers)):
                self.chooser.forced = forced
                _seed(seed)
                model = module.build()
                parameters = dict(model.named_parameters())  # as DDP would find them: a step may change the names
                for step in range(STEPS):
                    self.chooser.asked.clear()
                    if step == 0:
                        _seed(seed)
                    said = self._step(module, model, parameters, make, factor)
                    into = [every, base] if step == 0 and (number == 0 or isinstance(said, str)) else [every]
                    for runs in into:
                        if isinstance(said, str):
                            runs.errors.append(said)
                        else:
                            runs.count += 1
                            for name in said:
                                runs.unused[name] = runs.unused.get(name, 0) + 1
                    if isinstance(said, str):
                        break
        return every, base

    @staticmethod
    def _step(module: ModuleType, model: Any, parameters: dict[str, Any], make: Any, factor: float) -> list[str] | str:
        """The parameters without a gradient after one step, or what it raised."""
        for p in parameters.values():
            p.grad = None
        try:
            if make is None:
                loss = module.step(model)
            else:
                args, kwargs = make() if factor == 1.0 else _scaled(make(), factor)
                loss = module.loss(model(*args, **kwargs))
            loss.backward()
        except Exception as error:  # whatever a random program raises is its result
            return f"{type(error).__name__}: {error}"
        return [name for name, p in parameters.items() if p.requires_grad and p.grad is None]


def _constant(answers: Mapping[int, int], rng: random.Random) -> Callable[[int, int], Any]:
    """The same answer for every read of a fork; one that shows up only now gets one too."""
    kept = dict(answers)

    def answer(site: int, choices: int) -> int:
        if site not in kept:
            kept[site] = rng.randrange(choices)
        return kept[site]

    return answer


def _varying(rng: random.Random) -> Callable[[int, int], Any]:
    return lambda site, choices: rng.randrange(choices)


def ask(text: str, folder: Path, **options: Any) -> Analysis:
    """ddplint's answer about a target file with this text, in process. Raises what ddplint raises."""
    file = folder / f"target_{next(_files)}.py"
    file.write_text(text, encoding="utf-8")
    known = set(sys.modules)
    path = list(sys.path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spec = TargetSpec(factory=f"{file.name}:build", from_module=True, base=str(folder))
            return analyse(Request(spec, **{"rehearse": False, **options}))
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - known:
            if getattr(sys.modules[name], "__file__", None) == str(file):
                del sys.modules[name]
        linecache.checkcache(str(file))
        file.unlink()


@dataclass(frozen=True, slots=True)
class Verdict:
    """``mismatches`` are faults; ``notes`` are counted: what a forced run shows beyond the answer, and the like."""

    mismatches: tuple[Mismatch, ...] = ()
    notes: tuple[Mismatch, ...] = ()
    seconds: float = 0.0  # of CPU time, ddplint's own
    outcome: str = "answered"  # or "refused": ddplint rightly says that it does not run; "no kernel": it can't, here
    analysis: Analysis | None = None


def compare(program: Program, folder: Path, **options: Any) -> Verdict:
    """ddplint's answer about ``program`` against its runs."""
    return compare_texts(source(program), source(program, watched=True), folder, **options)


def compare_texts(text: str, watched: str, folder: Path, **options: Any) -> Verdict:
    """As ``compare``, of a target's text and the same with its forks as ``choose`` (the same text, if it has none)."""
    oracle = Oracle(watched)
    try:
        parameters = oracle.trainable()
    except Exception as error:  # the factory itself raises: ddplint has to say so
        parameters, every, base = {}, Runs(errors=[str(error)]), Runs(errors=[str(error)])
    else:
        varied = bool("random" in text.split("class Model", 1)[1] or oracle_forks(watched))
        every, base = oracle.natural(range(SEEDS if varied else 2))
    start = time.process_time()
    try:
        analysis = ask(text, folder, **options)
    except DdplintError as error:
        seconds = time.process_time() - start
        if base.errors or not any(parameters.values()):
            return Verdict(seconds=seconds, outcome="refused")
        return Verdict((Mismatch("wrong-error", str(error)),), seconds=seconds, outcome="refused")
    except Exception as error:  # the fault that is looked for
        return Verdict((Mismatch("crash", f"{type(error).__name__}: {error}"),), outcome="crashed")
    seconds = time.process_time() - start
    if base.errors and all(NO_KERNEL.search(error) for error in base.errors):
        return Verdict(seconds=seconds, outcome="no kernel")
    if not base.count:
        return Verdict((Mismatch("no-error", base.errors[0].split("\n")[0]),), (), seconds, analysis=analysis)
    mismatches, notes = _differences(analysis, parameters, every, oracle)
    return Verdict(tuple(mismatches), tuple(notes), seconds, analysis=analysis)


def oracle_forks(watched: str) -> bool:
    """Whether the watched text has a fork."""
    return "choose(" in watched


def _differences(
    analysis: Analysis, parameters: dict[str, bool], every: Runs, oracle: Oracle
) -> tuple[list[Mismatch], list[Mismatch]]:
    found: list[Mismatch] = []
    notes: list[Mismatch] = []
    said = {p.name: p for p in analysis.parameters}
    if list(said) != list(parameters) or any(p.trainable != parameters[p.name] for p in analysis.parameters):
        return [Mismatch("names", f"{sorted(set(said) ^ set(parameters))}")], notes
    found += [Mismatch("disagreement", str(d)) for d in analysis.trace.disagreements]
    if not analysis.trace.complete:
        notes.append(Mismatch("missed", "incomplete"))
    forked = oracle_forks(oracle.text)
    forced = oracle.forced(FORCED) if forked else Runs()
    unsure: list[tuple[str, bool]] = []  # sometimes, which the runs so far do not show, and whether it is said as observed
    for name, p in said.items():
        if not p.trainable:
            continue
        if p.usage == "always" and every.unused_in_some(name):
            found.append(Mismatch("false-all-clear", name))
        elif p.usage == "never" and every.used_in_some(name):
            found.append(Mismatch("false-alarm", name))
        elif p.usage == "always" and forced.unused_in_some(name):
            notes.append(Mismatch("missed", f"{name}: always, forced runs leave it unused"))
        elif p.usage == "never" and forced.count and forced.used_in_some(name):
            notes.append(Mismatch("missed", f"{name}: never, forced runs use it"))
        elif p.usage == "sometimes" and not every.varies(name):
            if p.evidence == "possible" and every.with_all(forced).varies(name):
                notes.append(Mismatch("impossible", f"{name}: possible by a forced answer"))
            else:
                unsure.append((name, p.evidence == "observed"))
    for first in range(SEEDS, SEEDS + FURTHER, BATCH):
        if not unsure:
            break
        every = every.with_all(oracle.natural(range(first, first + BATCH), (1.0, -1.0, 0.0, 8.0))[0])
        if forked and not all(observed for _, observed in unsure):
            forced = forced.with_all(oracle.forced(FORCED, 1000 * first))
        unsure = [(n, observed) for n, observed in unsure if not (every if observed else every.with_all(forced)).varies(n)]
    found += [Mismatch("unseen" if observed else "impossible", name) for name, observed in unsure]
    return found, notes


def rehearsed_and_real(programs: Sequence[Program], folder: Path) -> dict[Path, tuple[dict[str, str], dict[str, str]]]:
    """DDP's outcome for each setting, as ddplint rehearses it and as two real processes have it.

    Of programs that fork on nothing, without their further inputs: then both run the same path. Those that ddplint
    refuses, and those that raise in a later step, are left out. The files stay in ``folder``.
    """
    rehearsed: dict[int, dict[Path, dict[str, str]]] = {}  # by the iterations that the rehearsal took
    for number, program in enumerate(programs):
        text = source(replace(program, variants=()))
        try:
            analysis = ask(text, folder, rehearse=True)
        except DdplintError:
            continue
        if Oracle(text).natural(range(1))[0].errors:
            continue  # a step of it raises, whoever wraps it
        done = analysis.rehearsal  # None, where nothing could be rehearsed, equals no outcome of real processes
        iterations, outcomes = (done.iterations, done.outcomes) if done is not None else (STEPS, {})
        file = folder / f"program_{number}.py"
        file.write_text(text, encoding="utf-8")
        rehearsed.setdefault(iterations, {})[file] = outcomes
    return {
        file: (several[file], dict(seen.outcomes))
        for iterations, several in rehearsed.items()
        for file, seen in real_ddp.run(list(several), iterations=iterations).items()
    }
