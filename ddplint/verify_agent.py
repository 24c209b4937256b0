"""Between ``ddplint.verify`` and a rank: starts the rank's process, ends it, and agrees with the other ranks' agents.

An agent runs no code of the target, so it always answers; it forks the process that does, with torch imported already.
Agents meet at a store of PyTorch's (a file, or torchrun's TCP store). Each puts there how far its rank has come; the
agent of rank 0 judges, and its decisions are the others' orders.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any, NoReturn

import torch._dynamo  # noqa: F401  # DDP imports it: here it is paid once for all ranks to be forked
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from ddplint.verify import Job, Launch, Lines
from ddplint.verify_rank import Rank, Status

POLL = 0.005  # seconds between two looks at the store
BEATS = 3  # looks at a waiting rank after all others have come to rest, before it is said to wait for ever
GRACE = 5.0  # seconds for a rank to give up a process group
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def main() -> NoReturn:
    """Serve ``ddplint.verify`` as the launch on stdin says. Never returns."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    commands, answers = Lines(0), int(sys.argv[1])
    while not (lines := commands.read(60.0)):
        if commands.ended:
            os._exit(0)
    agent = Agent(Launch(**json.loads(lines[0])), commands, answers)
    agent.jobs += lines[1:]
    with contextlib.suppress(Ended):
        agent.serve()
    agent.end_rank()
    if agent.leads and agent.launch.folder:
        shutil.rmtree(agent.launch.folder, ignore_errors=True)  # for when nobody else is left to do it
    os._exit(0)


class Ended(Exception):
    """``ddplint.verify`` has closed the pipe, or is gone."""


# ---------------------------------------------------------------------- what the ranks come to


@dataclass(frozen=True, slots=True)
class Decision:
    """What a run has come to. ``outcome``: a verdict, ``raised`` (by ``plan``, if one) or ``late``."""

    outcome: str
    text: str = ""
    where: str = ""
    fix: str = ""
    plan: dict[str, Any] | None = None
    iterations: int = 0
    backend: str = ""
    measured: dict[str, Any] | None = None  # by rank 0, where the job has it timed


@dataclass(slots=True)
class Judge:
    """Looks at all ranks' statuses: who goes on, and what it comes to.

    An error of the reducer counts before a rank that waits. Ranks begin an iteration together; if one is done with it and
    the others wait for it, the run would hang if it were the last: they go on apart, for an error may yet come.
    """

    out_of_step: str = ""
    on: int = 0  # the iteration after which all were told to go on
    rests: tuple[Any, ...] = ()
    beats: dict[int, int] = field(default_factory=dict)  # of the waiting ranks, when all had come to rest

    def look(self, ranks: Sequence[Status | None]) -> Decision | str | None:
        """A decision; "on" or "apart" for ranks that are done with an iteration; None: it is not known yet."""
        statuses = [status for status in ranks if status is not None]
        if len(statuses) < len(ranks) or not self._at_rest(statuses):
            return None
        errors = [(s.iteration, rank, s) for rank, s in enumerate(statuses) if s.state == "error" and s.outcome != "hang"]
        reducers = [error for error in errors if error[2].outcome != "raised"]
        for iteration, rank, status in sorted(reducers or errors, key=lambda error: error[:2])[:1]:
            if status.outcome == "raised":
                text = f"rank {rank}, {_at(status)}: {status.text}"
                return Decision("raised", text, status.where, status.fix, status.plan)
            return Decision(status.outcome, f"rank {rank}, iteration {iteration}: {status.text}")
        for rank, status in enumerate(statuses):
            if status.state == "gone" and status.outcome != "hang":
                return Decision("raised", f"the process of rank {rank} {status.text}, {_at(status)}")
        waiting = [rank for rank, s in enumerate(statuses) if s.state in ("waiting", "error", "gone")]
        going = [rank for rank, s in enumerate(statuses) if s.state == "done"]
        if going and waiting and not self.out_of_step:
            self.out_of_step = _waits(statuses)
            return "apart"
        if going and not waiting:
            iteration = statuses[going[0]].iteration
            if iteration == self.on:
                return None  # they have been told
            self.on = iteration
            return "on"
        if waiting or self.out_of_step:
            return Decision("hang", self.out_of_step or _waits(statuses))
        return Decision("ok", iterations=statuses[0].iteration, measured=statuses[0].measured)

    def _at_rest(self, statuses: Sequence[Status]) -> bool:
        """Whether no rank comes forward by itself; of those that wait, that they still do since all others came to rest."""
        moving = ("running", "done") if self.out_of_step else ("running",)
        if any(status.state in moving for status in statuses):
            self.rests = ()
            return False
        rests = tuple((status.state, status.iteration, status.stage) for status in statuses)
        beats = {rank: status.beat for rank, status in enumerate(statuses) if status.state == "waiting"}
        if rests != self.rests:
            self.rests, self.beats = rests, beats
        return all(beat >= self.beats[rank] + BEATS for rank, beat in beats.items())


def late(ranks: Sequence[Status | None], limit: float) -> Decision:
    """The decision about a run that has reached no end after ``limit`` seconds."""
    running = [(rank, s) for rank, s in enumerate(ranks) if s is not None and s.state not in ("done", "ok")]
    places = "; ".join(f"rank {rank} was {_at(s)}" for rank, s in running) or "a rank has not begun"
    return Decision("late", f"no end after {limit:g} s: {places}", "", "raise --timeout, or give it smaller example inputs")


def _waits(statuses: Sequence[Status]) -> str:
    """Which rank waits where, and what the others do instead."""
    told = []
    for rank, status in enumerate(statuses):
        if status.state == "waiting":
            told.append(f"rank {rank} waits {_at(status)}")
        elif status.state == "gone":
            told.append(f"rank {rank} waited {_at(status)} for what no other sends ({status.text})")
        elif status.state == "error":
            told.append(f"rank {rank} waited {_at(status)} until another was gone")
        else:
            told.append(f"rank {rank} is done with iteration {status.iteration}")
    return "; ".join(told)


def _at(status: Status) -> str:
    if not status.iteration:
        return status.stage or "starting"
    at = f"in {status.stage} of iteration {status.iteration}" if status.stage else f"after iteration {status.iteration}"
    return f"{at} at {status.place}" if status.place else at


# ---------------------------------------------------------------------- the meeting point


class Board:
    """JSON values under keys, for all agents to see."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.store = self._open("board", launch.hosts)

    def _open(self, name: str, hosts: bool = False) -> Store:
        launch = self.launch
        if launch.folder:
            return FileStore(os.path.join(launch.folder, name.replace("/", "-")), launch.world)
        tcp = TCPStore(launch.host, launch.port, None, hosts, timedelta(seconds=launch.patience), False)
        return PrefixStore(f"{launch.prefix}/{name}", tcp)

    def group(self, name: str) -> Store:
        """A store of its own for the process group ``name``; opened in the rank's process."""
        return self._open(f"group/{name}")

    def put(self, key: str, value: Any) -> None:
        """Let the others see ``value``."""
        self.store.set(key, json.dumps(value))

    def get(self, key: str) -> Any:
        """What was last put under ``key``; None if nothing was."""
        return json.loads(self.store.get(key)) if self.store.check([key]) else None


# ---------------------------------------------------------------------- the rank's process


class Process:
    """The forked process of this agent's rank, in a process group of its own."""

    def __init__(self, launch: Launch, job: Job, board: Board) -> None:
        commands, self.commands = os.pipe()
        events, events_end = os.pipe()
        output, output_end = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.commands)
            os.close(events)
            os.close(output)
            _be_rank(launch, job, board, commands, events_end, output_end)
        with contextlib.suppress(PermissionError, ProcessLookupError):  # it does so itself as well
            os.setpgid(self.pid, self.pid)
        os.close(commands)
        os.close(events_end)
        os.close(output_end)
        self.events, self.output = Lines(events), Lines(output)
        self.mismatch = False
        self.status = Status("running")
        self.free = False

    def send(self, command: Mapping[str, Any]) -> None:
        """Tell the rank what to do."""
        with contextlib.suppress(BrokenPipeError):  # it has gone: its events say so
            os.write(self.commands, json.dumps(command).encode() + b"\n")

    def hear(self) -> bool:
        """Take in what the rank says; whether its status is another now."""
        before = self.status
        self._pass_on(self.output.read(0.0))
        for line in self.events.read(POLL):
            event = json.loads(line)
            if "free" in event:
                self.free = True
            else:
                self.status = Status(**event)
        # It is looked at only: the number stays its own until the group is killed.
        end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if end is not None and self.status is before and before.state != "gone":
            exited = end.si_code == os.CLD_EXITED
            how = f"left with exit code {end.si_status}" if exited else f"was ended by {signal.Signals(end.si_status).name}"
            while more := self.output.read(0.0):
                self._pass_on(more)
            outcome = "hang" if self.mismatch else ""
            how = "gloo ended it, for the ranks' collectives differ in size" if self.mismatch else how
            self.status = replace(before, state="gone", text=how, outcome=outcome)
        return self.status is not before

    def _pass_on(self, lines: Sequence[str]) -> None:
        """What the rank prints goes to stderr, but for gloo's last words, which are this run's answer."""
        for line in lines:
            if "gloo::EnforceNotMet" in line or "collective mismatch" in line:
                self.mismatch = True
            else:
                with contextlib.suppress(OSError):
                    os.write(2, line.encode() + b"\n")

    def kill(self) -> None:
        """End the rank and all it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.commands)
        os.close(self.events.number)
        self._pass_on(self.output.read(0.0))
        os.close(self.output.number)
        _end_children()


def _be_rank(launch: Launch, job: Job, board: Board, commands: int, events: int, output: int) -> NoReturn:
    """In the forked process: run what the agent asks for, until the pipe is closed. Never returns."""
    try:
        os.setpgid(0, 0)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _prctl(PR_SET_CHILD_SUBREAPER, 0)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)  # a target that asks for input gets none
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.close(int(sys.argv[1]))
        sys.argv = ["ddplint"]  # a target that parses arguments sees none of ours
        sys.path.insert(0, os.getcwd())
        lines, waiting = Lines(commands), list[str]()

        def command() -> dict[str, Any] | None:
            while not waiting:
                waiting.extend(lines.read(60.0))
                if lines.ended:
                    return None
            found: dict[str, Any] = json.loads(waiting.pop(0))
            return found

        Rank(launch.rank, launch.world, job, board.group, command, events).serve()
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(os.EX_SOFTWARE)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _end_children() -> None:
    """Kill what a rank has left behind in another process group: this process is its parent now (Linux)."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as listed:
                children = [int(pid) for pid in listed.read().split()]
        except FileNotFoundError:
            return
        if not children:
            return
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


# ---------------------------------------------------------------------- the agent


class Agent:
    """One rank's agent. That of rank 0 takes jobs from ``commands`` and tells on ``answers`` what comes of them."""

    def __init__(self, launch: Launch, commands: Lines, answers: int) -> None:
        self.launch, self.commands, self.answers = launch, commands, answers
        self.leads = launch.rank == 0
        self.jobs: list[str] = []
        self.process: Process | None = None
        self.job: Job | None = None
        try:
            self.board = Board(launch)
        except RuntimeError as error:
            place = f"{launch.host}:{launch.port}" if launch.host else launch.folder
            text = " ".join(str(error).split("\n", 1)[0].split())
            fix = "look at MASTER_ADDR and MASTER_PORT, or start it by torchrun"
            self._fail(f"the ranks can't meet: {text}", place, fix)
            os._exit(0)

    def serve(self) -> None:
        """Run jobs until there are no more. Raises Ended."""
        number = 0
        while True:
            found = self._next(f"{number}/job")
            if found is None:
                return
            self.end_rank()
            self.job = Job.from_json(found)
            self._lead(number) if self.leads else self._follow(number)
            number += 1

    def _next(self, key: str) -> Any:
        """The next job: rank 0's from its pipe, which it puts on the board for the others; None: there is none."""
        while True:
            if self.leads:
                try:
                    self._listen(0.1)
                except Ended:
                    self.board.put(key, {"end": True})
                    raise
                if self.jobs:
                    job = json.loads(self.jobs.pop(0))
                    self.board.put(key, job)
                    return job
            else:
                self._listen(0.02)
                if (job := self.board.get(key)) is not None:
                    return None if "end" in job else job

    def _listen(self, wait: float) -> None:
        self.jobs += self.commands.read(wait)
        if self.commands.ended and not self.jobs:
            raise Ended

    def _lead(self, number: int) -> None:
        assert self.job is not None
        turn = 0
        for setting in self.job.settings:
            start = time.monotonic()
            self._say({"setting": setting})
            left_out: list[dict[str, Any]] = []
            notes: list[str] = []
            while True:
                key = f"{number}/{turn}"
                run = {"setting": setting, "group": key, "left_out": left_out}
                self.board.put(f"{key}/run", run)
                decision = self._attempt(key, run)
                turn += 1
                if decision.outcome != "raised" or decision.plan is None or decision.plan in left_out:
                    break
                left_out = [*left_out, decision.plan]
                notes.append(f"a path was left out, for it raises under DDP ({decision.text})")
                if all(plan in left_out for plan in self.job.plans):
                    break
            if decision.outcome in ("raised", "late"):
                self.board.put(f"{number}/{turn}/run", {"end": True})
                fix = decision.fix or ("it runs without DDP: start it by torchrun to see the whole error" if notes else "")
                self._fail(f"{setting}: {decision.text}", decision.where or self.job.target.factory, fix)
                return
            real = {
                "outcome": decision.outcome,
                "detail": "; ".join([decision.text, *notes] if decision.text else notes),
                "iterations": decision.iterations,
                "backend": decision.backend,
                "seconds": time.monotonic() - start,
                "measured": decision.measured,
            }
            self._say({"setting": setting, "real": real})
        self.board.put(f"{number}/{turn}/run", {"end": True})

    def _follow(self, number: int) -> None:
        turn = 0
        while True:
            key = f"{number}/{turn}"
            while (run := self.board.get(f"{key}/run")) is None:
                self._listen(POLL)
            if "end" in run:
                return
            self._attempt(key, run)
            turn += 1

    def _attempt(self, key: str, run: Mapping[str, Any]) -> Decision:
        """One run of all ranks: this agent's part in it, until rank 0's has decided what it comes to."""
        assert self.job is not None
        if self.process is None:
            self.process = Process(self.launch, self.job, self.board)
        process = self.process
        process.status, process.free = Status("running", stage="starting"), False
        process.send(run)
        judge, start = Judge(), time.monotonic()
        told = 0
        while True:
            if process.hear():
                self.board.put(f"{key}/status/{self.launch.rank}", asdict(process.status))
            self._listen(0.0)
            if self.leads:
                self._judge(key, judge, start)
            go = self.board.get(f"{key}/go") or []
            for order in go[told:]:
                process.send({"go": order})
            told = len(go)
            found = self.board.get(f"{key}/decision")
            if found is not None:
                self._after(Decision(**found))
                return Decision(**found)

    def _judge(self, key: str, judge: Judge, start: float) -> None:
        assert self.job is not None
        ranks: list[Status | None] = []
        for rank in range(self.launch.world):
            found = self.board.get(f"{key}/status/{rank}")
            ranks.append(Status(**found) if found is not None else None)
        verdict: Decision | str | None = judge.look(ranks)
        if verdict is None and time.monotonic() - start > self.job.limit:
            verdict = late(ranks, self.job.limit)
        if isinstance(verdict, Decision):
            backend = next((s.backend for s in ranks if s is not None and s.backend), "")
            reached = max((s.iteration for s in ranks if s is not None), default=0)
            self.board.put(f"{key}/decision", asdict(replace(verdict, backend=backend, iterations=reached)))
        elif verdict is not None:
            go = self.board.get(f"{key}/go") or []
            self.board.put(f"{key}/go", [*go, verdict])

    def _after(self, decision: Decision) -> None:
        """Make the rank ready for the next run; end it where it does not come to be."""
        process = self.process
        assert process is not None
        if decision.outcome not in ("hang", "raised", "late") and process.status.state in ("ok", "error"):
            process.send({"clean": True})
            deadline = time.monotonic() + GRACE
            while not process.free and not process.events.ended and time.monotonic() < deadline:
                process.hear()
                self._listen(0.0)
        if not process.free:
            self.end_rank()

    def end_rank(self) -> None:
        """End the rank's process, if there is one, with all it started."""
        if self.process is not None:
            self.process.kill()
            self.process = None

    def _say(self, event: Mapping[str, Any]) -> None:
        rest = memoryview(json.dumps(event).encode() + b"\n")
        while rest:
            rest = rest[os.write(self.answers, rest) :]

    def _fail(self, what: str, where: str, fix: str) -> None:
        self._say({"failed": {"what": what, "where": where, "fix": fix}})
