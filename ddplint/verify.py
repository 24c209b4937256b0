"""The rehearsed verdict put to real processes: a ``DistributedDataParallel`` over gloo, or on the ranks of torchrun.

Nothing here imports torch. The other half is ``ddplint.verify_agent``: one agent a rank, each with a process of its own
under it that runs the target (``ddplint.verify_rank``). Alone, this starts an agent for each rank; under torchrun each
rank runs this, and starts its own. Agents end, with all they started, when the pipe that this process holds is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import ddplint
from ddplint.analysis import Rehearsal
from ddplint.checking import Options, Subject, analysed
from ddplint.errors import DdplintError
from ddplint.rules import TargetSpec

FORMATS = ("text", "json")
SCHEMA_VERSION = 1
SETTINGS: dict[str, dict[str, bool]] = {  # as reports name them -> as DistributedDataParallel takes them
    "find_unused_parameters=False": {"find_unused_parameters": False},
    "find_unused_parameters=True": {"find_unused_parameters": True},
    "static_graph=True": {"static_graph": True},
}
WIDTH = 120

_GRACE = 10.0  # seconds for an agent to end what it started, once its pipe is closed
_START_UP = 120.0  # seconds for the agents to import torch and to find each other
_PACKAGE = Path(ddplint.__file__).resolve().parent
# The package's folder is on sys.path for the first import only: it may hold names of the standard library.
_START = (
    f"import sys; sys.path.insert(0, {str(_PACKAGE.parent)!r}); import ddplint; del sys.path[0]; "
    "from ddplint.verify_agent import main; main()"
)

# ---------------------------------------------------------------------- what goes to the agents


@dataclass(frozen=True, slots=True)
class Launch:
    """One rank of so many, and where it meets the others: a folder, or a TCP store at ``host`` and ``port``.

    ``hosts``: whether this rank holds that store (torchrun holds one itself). ``prefix`` goes before every key in it.
    ``patience``: how long it waits for the store, in seconds.
    """

    rank: int
    world: int
    folder: str = ""
    host: str = ""
    port: int = 0
    hosts: bool = False
    prefix: str = "ddplint"
    patience: float = 60.0


@dataclass(frozen=True, slots=True)
class Timing:
    """What is to be timed (``ddplint cost``): ``steps`` with find_unused_parameters=True, and as many with ``off``, if that.

    ``dead``: first names of the parameters that are frozen where the flag is off.
    """

    dead: tuple[str, ...]
    off: bool
    steps: int


@dataclass(frozen=True, slots=True)
class Job:
    """One target to be run under each of ``settings``.

    ``plans`` are the rehearsed paths, of which each rank runs its own for ``rehearsed`` iterations, as the rehearsal did;
    then come iterations with seeds and inputs of their own. ``iterations`` is the number of all, None for enough;
    ``limit`` the time for each setting in seconds. With ``timing`` that is done in the place of iterations.
    """

    target: TargetSpec
    plans: list[dict[str, Any]]
    rehearsed: int
    iterations: int | None
    limit: float
    settings: tuple[str, ...] = tuple(SETTINGS)
    timing: Timing | None = None

    def to_json(self) -> dict[str, Any]:
        """This job as JSON-ready dictionaries and lists."""
        return {
            "target": self.target.to_json(),
            "plans": self.plans,
            "rehearsed": self.rehearsed,
            "iterations": self.iterations,
            "limit": self.limit,
            "settings": list(self.settings),
            "timing": asdict(self.timing) if self.timing is not None else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        """The job that ``to_json`` wrote."""
        timing = data["timing"]
        made = {
            "target": TargetSpec.from_json(data["target"]),
            "settings": tuple(data["settings"]),
            "timing": Timing(**{**timing, "dead": tuple(timing["dead"])}) if timing is not None else None,
        }
        return cls(**{**data, **made})


def torchrun() -> Launch | None:
    """The rank that a launcher such as torchrun made this process, None without one. Raises DdplintError."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(name in os.environ for name in names):
        return None
    try:
        rank, world, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    except ValueError:
        raise DdplintError(
            "are set, but not to numbers",
            where="the environment variables RANK, WORLD_SIZE and MASTER_PORT",
            fix="unset them, or start this by torchrun",
        ) from None
    return Launch(
        rank,
        world,
        host=os.environ["MASTER_ADDR"],
        port=port,
        hosts=rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        prefix=f"ddplint-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}",
    )


# ---------------------------------------------------------------------- what comes of it


@dataclass(frozen=True, slots=True)
class Real:
    """What real processes did under one setting. ``outcome`` as in the rehearsal; ``seconds`` of wall time.

    ``detail``: the first line of the reducer's error with its rank and iteration, or which rank waits where. ``measured``:
    what rank 0 found for the job's ``timing``, if it has one.
    """

    setting: str
    outcome: str
    detail: str
    iterations: int
    backend: str
    seconds: float
    measured: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """One subject: the rehearsal, and beside it what real processes did under each setting."""

    title: str
    ckpt: str | None
    target: str
    ranks: int
    rehearsal: Rehearsal
    real: tuple[Real, ...]

    @property
    def differing(self) -> tuple[str, ...]:
        """The settings under which the real processes did something else than the rehearsal says."""
        return tuple(real.setting for real in self.real if real.outcome != self.rehearsal.outcomes[real.setting])


Say = Callable[[str, "Real | None"], None]
"""Told of a setting when it starts (None), and when it is done."""


def verified(
    subject: Subject, options: Options, ranks: Ranks, *, iterations: int | None = None, say: Say | None = None
) -> Verified:
    """What real processes do with ``subject`` under each setting, beside its rehearsal; ``ranks`` leads them.

    ``options.timeout``, in seconds, is for the analysis and for each setting. Raises DdplintError where the analysis or
    the processes could not be run to their end.
    """
    analysis = analysed(subject, replace(options, ranks=ranks.world), rehearse=True)
    rehearsal = analysis.rehearsal
    if rehearsal is None:
        why = next((notice for notice in analysis.notices if notice.startswith("not rehearsed")), "not rehearsed")
        raise DdplintError(f"there is no verdict to verify: {why}", where=analysis.target)
    job = Job(subject.target, rehearsal.plans, rehearsal.iterations, iterations, options.timeout)
    return Verified(
        title=subject.title,
        ckpt=subject.rules.name if subject.rules else None,
        target=analysis.target,
        ranks=ranks.world,
        rehearsal=rehearsal,
        real=tuple(ranks.run(job, say or (lambda setting, real: None))),
    )


# ---------------------------------------------------------------------- the agents


@dataclass(slots=True)
class Lines:
    """Lines from a file descriptor, as they come. ``ended``: nothing more can come."""

    number: int
    ended: bool = False
    _rest: bytes = b""

    def read(self, wait: float) -> list[str]:
        """The whole lines that are there within ``wait`` seconds (none: an empty list)."""
        if self.ended or not select.select([self.number], [], [], wait)[0]:
            return []
        piece = os.read(self.number, 1 << 16)
        self.ended = not piece
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return [line.decode(errors="replace") for line in whole]


@dataclass(slots=True)
class _Agent:
    rank: int
    process: subprocess.Popen[bytes]
    events: Lines

    def send(self, data: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has gone: the next look at its events says so
            self.process.stdin.write(json.dumps(data).encode() + b"\n")
            self.process.stdin.flush()


@dataclass(slots=True)
class Ranks:
    """The running agents of this process: all of them, or the one of its own rank under torchrun."""

    world: int
    leads: bool  # whether rank 0 is here: it takes the jobs, and tells what came of them
    agents: list[_Agent] = field(default_factory=list)

    def run(self, job: Job, say: Say) -> Iterator[Real]:
        """What the ranks do with ``job``, setting by setting. Raises DdplintError where they can't get to an answer."""
        leader = self.agents[0]
        leader.send(job.to_json())
        start, left = time.monotonic(), set(job.settings)
        limit = _START_UP
        while left:
            for event in self._events(leader):
                if "failed" in event:
                    raise DdplintError(**event["failed"])
                setting = event["setting"]
                if "real" not in event:
                    start, limit = time.monotonic(), job.limit + _START_UP
                    say(setting, None)
                    continue
                real = Real(setting, **event["real"])
                left.remove(setting)
                start = time.monotonic()
                say(setting, real)
                yield real
            if time.monotonic() - start > limit:
                raise DdplintError(
                    f"the ranks did not find each other within {limit:g} s",
                    where=job.target.factory,
                    fix="look whether every one of them has been started",
                )

    def wait(self) -> None:
        """Until the leading rank has no more jobs. Raises DdplintError if this rank's agent breaks off before."""
        (agent,) = self.agents
        while not agent.events.ended:
            for event in map(json.loads, agent.events.read(1.0)):
                if "failed" in event:
                    raise DdplintError(**event["failed"])
        if agent.process.wait() != 0:
            raise _lost(agent)

    def _events(self, leader: _Agent) -> list[dict[str, Any]]:
        events = [json.loads(line) for line in leader.events.read(0.1)]
        for agent in self.agents:
            if agent is not leader:
                events += [event for line in agent.events.read(0.0) if "failed" in (event := json.loads(line))]
            if not events and agent.events.ended:
                raise _lost(agent)
        return events


def _lost(agent: _Agent) -> DdplintError:
    try:
        code = agent.process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        code = 0
    how = f"was ended by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"left with exit code {code}"
    return DdplintError(f"ddplint's own process for rank {agent.rank} {how}", fix="run it again with --verbose")


@contextlib.contextmanager
def started(options: Options, launch: Launch | None) -> Iterator[Ranks]:
    """The agents of ``options.ranks`` ranks, or of the one rank that ``launch`` says; none is left after the block."""
    with contextlib.ExitStack() as held:
        if launch is None:
            # Agents write into it until they end, and they may be killed.
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix="ddplint-", ignore_cleanup_errors=True))
            launches = [Launch(rank, options.ranks, folder=folder) for rank in range(options.ranks)]
        else:
            launches = [launch]
        ranks = Ranks(launches[0].world, launches[0].rank == 0)
        held.callback(_end, ranks.agents)
        for each in launches:
            ranks.agents.append(_agent(each, options))
        yield ranks


def _agent(launch: Launch, options: Options) -> _Agent:
    events, events_end = os.pipe()
    output = subprocess.DEVNULL if options.quiet else sys.stderr.fileno() if _has_number(sys.stderr) else None
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, str(events_end)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[events_end],
            env=_environment(launch, options.verbose),
            start_new_session=True,  # Ctrl-C reaches this process alone, which ends the others in order
        )
    finally:
        os.close(events_end)
    agent = _Agent(launch.rank, process, Lines(events))
    agent.send(asdict(launch))
    return agent


def _has_number(stream: Any) -> bool:
    try:
        os.fstat(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return True


def _environment(launch: Launch, verbose: bool) -> dict[str, str]:
    """An agent's environment, and so that of its rank: what has to be set before Python starts or torch is imported."""
    environment = {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "TORCH_DISTRIBUTED_DEBUG": "OFF",  # its checks raise where a run without them would wait
    }
    if launch.folder:
        environment |= {
            "RANK": str(launch.rank),
            "LOCAL_RANK": str(launch.rank),
            "WORLD_SIZE": str(launch.world),
            "LOCAL_WORLD_SIZE": str(launch.world),
            "PYTHONHASHSEED": "0",
            "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        }
    if not verbose:
        environment |= {"PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "6"}
    return environment


def _end(agents: Sequence[_Agent]) -> None:
    """Close every agent's pipe, which makes it end what it started; one that does not go is killed."""
    for agent in agents:
        assert agent.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            agent.process.stdin.close()
    deadline = time.monotonic() + _GRACE
    for agent in agents:
        try:
            agent.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.process.pid, signal.SIGKILL)
            agent.process.wait()
        os.close(agent.events.number)


# ---------------------------------------------------------------------- reports


def render(format: str, results: Sequence[Verified]) -> str:
    """``results`` in one of FORMATS, ending in a newline."""
    if format == "json":
        return json.dumps(_document(results), indent=2) + "\n"
    return "\n".join("".join(f"{line}\n" for line in _table(result)) for result in results)


def _table(result: Verified) -> Iterator[str]:
    """A verdict, a row for each setting, and below it what was said of the setting on either side."""
    differing = result.differing
    verdict = f"real processes differ under {' and '.join(differing)}" if differing else "rehearsed and real agree"
    backends = "/".join(sorted({real.backend for real in result.real if real.backend}))
    yield f"{result.title}: {verdict} ({result.ranks} processes over {backends})"
    yield f"  {'setting':30}{'rehearsed':18}real"
    for real in result.real:
        rehearsed = result.rehearsal.outcomes[real.setting]
        mark = "   <- differs" if real.setting in differing else ""
        yield f"  {real.setting:30}{rehearsed:18}{real.outcome}{mark}".rstrip()
        details = {"real": real.detail}
        if real.setting in differing:
            details = {"rehearsed": result.rehearsal.details.get(real.setting, ""), **details}
        for side, text in details.items():
            if text:
                yield from textwrap.wrap(f"{side}: {text}", WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 8)


def _document(results: Sequence[Verified]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "ddplint", "version": ddplint.__version__},
        "results": [
            {
                "ckpt": result.ckpt,
                "target": result.target,
                "agree": not result.differing,
                "ranks": result.ranks,
                "settings": [
                    {
                        "setting": real.setting,
                        "rehearsed": result.rehearsal.outcomes[real.setting],
                        "rehearsed_detail": result.rehearsal.details.get(real.setting, ""),
                        "real": real.outcome,
                        "real_detail": real.detail,
                        "iterations": real.iterations,
                        "backend": real.backend,
                        "seconds": round(real.seconds, 3),
                    }
                    for real in result.real
                ],
            }
            for result in results
        ],
    }
