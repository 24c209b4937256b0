"""Thousands of random programs through ddplint and real backward runs; every mismatch made small and kept.

    python tests/programs_nightly.py --count 10000 --seed 1 --jobs 2

Run it from the repository's root. ``--save FOLDER`` is where each mismatch's source goes (default
``/tmp/programs/mismatches``), ``--straight`` leaves out control flow that forks on values and draws. The same count
and seed draw the same programs, whatever ``--jobs``. With ``--ddp`` the rehearsal of programs that fork on nothing is
held against a real DistributedDataParallel of two processes over gloo instead. Exit code 1 if there was a mismatch.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).resolve().parent.parent))

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.programs import Limits, Program, programs, smaller, source

GENERATING = settings(database=None, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
CHUNK = 100
SMALLER = 150  # programs tried to make one mismatch smaller


@dataclass(slots=True)
class Tally:
    """What one chunk, or all of them, came to."""

    programs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    mismatches: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    sources: list[tuple[str, str, str]] = field(default_factory=list)  # kind, what, source
    seconds: float = 0.0  # of CPU time, ddplint's own

    def add(self, other: Tally) -> None:
        """Take in another chunk."""
        self.programs += other.programs
        self.outcomes += other.outcomes
        self.mismatches += other.mismatches
        self.notes += other.notes
        self.sources += other.sources
        self.seconds += other.seconds


def drawn(count: int, number: int, limits: Limits) -> list[Program]:
    """``count`` programs, the same ones for the same ``number``."""
    found: list[Program] = []

    @seed(number)
    @settings(GENERATING, max_examples=count)
    @given(programs(limits))
    def keep(program: Program) -> None:
        found.append(program)

    keep()
    return found[:count]


def smallest(program: Program, kind: str, folder: Path) -> Program:
    """``program`` made smaller as long as ddplint and the runs still differ by ``kind``."""
    from tests.programs_oracle import compare

    tries = 0
    shrunk = True
    while shrunk and tries < SMALLER:
        shrunk = False
        for candidate in smaller(program):
            tries += 1
            if any(m.kind == kind for m in compare(candidate, folder).mismatches):
                program, shrunk = candidate, True
                break
            if tries >= SMALLER:
                break
    return program


def chunk(job: tuple[int, int, Limits, bool]) -> Tally:
    """Run one chunk of programs."""
    import torch

    from tests.programs_oracle import compare

    torch.set_num_threads(1)
    count, number, limits, shrink = job
    tally = Tally()
    with tempfile.TemporaryDirectory() as name, open(os.devnull, "w") as silence, contextlib.redirect_stderr(silence):
        folder = Path(name)
        for program in drawn(count, number, limits):
            verdict = compare(program, folder)
            tally.programs += 1
            tally.outcomes[verdict.outcome if not verdict.analysis else verdict.analysis.trace.device] += 1
            tally.seconds += verdict.seconds
            tally.notes.update({m.kind for m in verdict.notes})
            for kind in sorted({m.kind for m in verdict.mismatches}):
                tally.mismatches[kind] += 1
                small = smallest(program, kind, folder) if shrink and tally.mismatches[kind] == 1 else program
                again = compare(small, folder)
                what = "; ".join(m.what for m in again.mismatches if m.kind == kind)
                tally.sources.append((kind, what, source(small)))
    gc.collect()
    return tally


def _chunks(count: int, first: int, limits: Limits, shrink: bool) -> Iterator[tuple[int, int, Limits, bool]]:
    for number, start in enumerate(range(0, count, CHUNK)):
        yield min(CHUNK, count - start), first * 1_000_000 + number, limits, shrink


def against_ddp(count: int, number: int, save: Path) -> int:
    """Rehearsals against real processes: the exit code."""
    from tests.programs_oracle import rehearsed_and_real

    start = time.perf_counter()
    compared = differing = 0
    outcomes: Counter[str] = Counter()
    for part, first in enumerate(range(0, count, CHUNK)):
        with tempfile.TemporaryDirectory() as name:
            several = drawn(min(CHUNK, count - first), number * 1_000_000 + part, Limits(forks=False))
            for file, (rehearsed, real) in rehearsed_and_real(several, Path(name)).items():
                compared += 1
                outcomes.update(real.values())
                if rehearsed != real:
                    differing += 1
                    text = f'"""rehearsed {rehearsed}, real {real}"""\n{file.read_text(encoding="utf-8")}'
                    (save / f"ddp-{number}-{part}-{file.stem}.py").write_text(text, encoding="utf-8")
        say(f"{compared} programs under real DDP, {differing} mismatches, {time.perf_counter() - start:.0f} s")
    say(f"outcomes over three settings: {dict(outcomes)}")
    return 1 if differing else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--save", type=Path, default=Path("/tmp/programs/mismatches"))
    parser.add_argument("--straight", action="store_true", help="no control flow on values and draws")
    parser.add_argument("--no-shrink", action="store_true", help="keep mismatches as they were drawn")
    parser.add_argument("--ddp", action="store_true", help="rehearsals against a real DDP of two processes")
    options = parser.parse_args()
    options.save.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    if options.ddp:
        return against_ddp(options.count, options.seed, options.save)
    total = Tally()
    jobs = _chunks(options.count, options.seed, Limits(forks=not options.straight), not options.no_shrink)
    context = multiprocessing.get_context("spawn")
    # A pool for so many chunks each: ``max_tasks_per_child`` of one pool stops for ever on Python 3.11.7.
    while several := list(itertools.islice(jobs, 10 * options.jobs)):
        with ProcessPoolExecutor(options.jobs, context) as pool:
            for tally in pool.map(chunk, several):  # a worker that dies is a BrokenProcessPool here, no silence
                _keep(tally, total, options.seed, options.save)
                seconds = time.perf_counter() - start
                say(f"{total.programs} programs, {dict(total.mismatches) or 'no mismatch'}, {seconds:.0f} s")
    say(f"ddplint's own time: {1000 * total.seconds / max(total.programs, 1):.0f} ms a program")
    say(f"answered on or refused: {dict(total.outcomes)}; beyond the answer by forced runs: {dict(total.notes)}")
    return 1 if total.mismatches else 0


def _keep(tally: Tally, total: Tally, seed: int, folder: Path) -> None:
    """Add ``tally`` to ``total``, its mismatches' sources to ``folder``."""
    for kind, what, text in tally.sources:
        number = len(list(folder.glob(f"{kind}-{seed}-*.py")))
        (folder / f"{kind}-{seed}-{number}.py").write_text(f'"""{kind}: {what}"""\n{text}', encoding="utf-8")
    total.add(tally)


def say(line: str) -> None:
    """One line on stdout, now."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
