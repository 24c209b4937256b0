"""One real rank: a process that wraps the target in ``DistributedDataParallel`` and runs iterations on its own path.

``ddplint.verify_agent`` forks it, tells it which setting to run, and hears from it how far it has come. A second thread
looks at the first: a rank that uses no time and does not come forward waits for another.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from types import CodeType, FrameType
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import nn
from torch._C._distributed_c10d import Store
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]  # not in __all__

from ddplint.cost_rank import Bench
from ddplint.errors import DdplintError
from ddplint.fields import shown
from ddplint.rehearse import ERRORS
from ddplint.target import Inputs, Target, load, said, take_step
from ddplint.trace.devices import DeviceMode
from ddplint.trace.draws import draws_watched
from ddplint.trace.environment import cuda_answered, process_group_kept
from ddplint.trace.patching import patched
from ddplint.trace.recorder import composites_open
from ddplint.trace.run import build, on_device, seed_everything
from ddplint.trace.sites import call_site
from ddplint.trace.values import AnsweringMode, Answers, Fork, Plan, answering
from ddplint.verify import SETTINGS, Job

State = Literal["running", "waiting", "done", "ok", "error", "gone"]
NATURAL = 4  # least number of iterations that follow no rehearsed path
SEED = 1000  # of the first of those, on the first rank
BEAT = 0.25  # seconds between two looks at the main thread
BUSY = 0.005  # seconds of computing from one look to the next by which a rank is known not to wait
WAIT = 2.0  # seconds without any, inside PyTorch, after which it does
WAIT_ELSEWHERE = 20.0  # the same in other code, which may sleep or read a file, and on a GPU, which computes by itself
# What the backends say when the other side is gone, or gives them something else than they wait for.
BROKEN_OFF = ("gloo/", "Connection closed", "Connection reset", "Broken pipe", "Timed out waiting", "NCCL")

_init_process_group, _destroy_process_group = dist.init_process_group, dist.destroy_process_group
_TORCH = os.path.join(os.path.dirname(os.path.realpath(str(torch.__file__))), "")


@dataclass(frozen=True, slots=True)
class Status:
    """How far a rank has come.

    ``done`` with an iteration (counted from 1; 0 is building and wrapping the model), it goes on when it is told to.
    ``ok``: with all of them; ``gone``: its process has ended. ``outcome`` of an error: the reducer's, ``hang`` where the
    other ranks are gone, ``raised`` for anything else. ``beat`` counts the looks since a rank has been ``waiting``.
    """

    state: State
    iteration: int = 0
    stage: str = ""
    place: str = ""
    beat: int = 0
    outcome: str = ""
    text: str = ""
    where: str = ""
    fix: str = ""
    plan: dict[str, Any] | None = None
    backend: str = ""
    measured: dict[str, Any] | None = None  # in the status that a timed run ends in


def plan_of(data: Mapping[str, Any]) -> Plan:
    """The plan that ``data``, of ``Rehearsal.plans``, stands for."""
    answers = tuple((Fork(**{**fork, "columns": tuple(fork["columns"])}), answer) for fork, answer in data["answers"])
    return Plan(data["inputs"], data["seed"], answers, data["rank"])


def schedule(
    job: Job, rank: int, inputs: int, left_out: list[dict[str, Any]]
) -> tuple[int, Callable[[int], dict[str, Any]]]:
    """The number of iterations, and the plan of each (from 0) on ``rank``: first as rehearsed, then free ones.

    ``inputs``: how many example inputs the target has. ``left_out``, paths that raise, leaves at least one plan of the job;
    inputs of an unforced one are left out with it, whatever the seed.
    """
    own = [plan for plan in job.plans if plan["rank"] == rank]
    if len(own) < 2:
        own = [plan for plan in job.plans if plan["rank"] == job.plans[0]["rank"]]
    own = [plan for plan in own if plan not in left_out] or [plan for plan in job.plans if plan not in left_out]
    raising = {plan["inputs"] for plan in left_out if not plan["answers"]}

    def at(number: int) -> dict[str, Any]:
        if number < job.rehearsed:
            return own[(number + rank) % len(own)]
        free = {
            "inputs": (number + rank) % max(inputs, 1),
            "seed": SEED * (rank + 1) + number,
            "answers": [],
            "rank": rank,
        }
        return free if free["inputs"] not in raising else own[number % len(own)]

    return job.iterations or job.rehearsed + max(NATURAL, 2 * inputs), at


@dataclass(slots=True)
class _Look:
    """What the last look at the main thread saw: its innermost code, the time it had used, where it was."""

    code: CodeType | None = None
    used: float = 0.0
    at: tuple[int, str] = (0, "")
    idle_from: float | None = None


class Rank:
    """The process's one rank, run after run. ``connect`` gives the store that a run's ranks meet at."""

    def __init__(
        self,
        rank: int,
        world: int,
        job: Job,
        connect: Callable[[str], Store],
        commands: Callable[[], dict[str, Any] | None],
        events: int,
    ) -> None:
        self.rank, self.world, self.job = rank, world, job
        self.connect, self.commands, self.events = connect, commands, events
        self.on_gpu = torch.cuda.is_available()
        self.backend = "nccl" if self.on_gpu else "gloo"
        self.target: Target | None = None
        self.status = Status("ok")
        self.lock = threading.Lock()

    def serve(self) -> None:
        """Run what is asked for until no more is."""
        if self.on_gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", self.rank)) % torch.cuda.device_count())
        threading.Thread(target=self._watch, daemon=True).start()
        with self._environment():
            while (command := self.commands()) is not None:
                if "setting" in command:
                    end = self._run(command["setting"], command["group"], command["left_out"])
                    self._tell(end)
                    if end.state == "error":
                        self._clean()  # as a process that ends with an error does: those that wait for it are told
                elif command.get("clean"):
                    self._clean()
                    with self.lock:
                        self._send({"free": True})

    @contextmanager
    def _environment(self) -> Iterator[None]:
        """The user's code as it is, but for what it can't have: a GPU that is not there, a process group of its own."""
        with ExitStack() as stack:
            if not self.on_gpu:
                stack.enter_context(cuda_answered())
            if any(fork["domain"] in ("draw", "choice") for plan in self.job.plans for fork, _ in plan["answers"]):
                stack.enter_context(draws_watched())
            stack.enter_context(process_group_kept())
            yield

    # ------------------------------------------------------------------ one run

    def _run(self, setting: str, group: str, left_out: list[dict[str, Any]]) -> Status:
        """All iterations under ``setting``: the status it ends in."""
        self._tell(Status("running", stage="building the model"))
        plan: dict[str, Any] | None = None  # of the iteration that runs
        try:
            # Ranks that wait are seen from outside, long before the backend gives up.
            limit = timedelta(seconds=self.job.limit + 600)
            _init_process_group(
                self.backend, store=self.connect(group), rank=self.rank, world_size=self.world, timeout=limit
            )
            if self.target is None:
                self.target = load(self.job.target)
            if self.job.timing is not None:
                bench = Bench(self.target, one_step, lambda stage: self._tell(Status("running", stage=stage)))
                return Status("ok", measured=bench.measured(self.job.timing, self.job.limit))
            model = self._built(self.target)
            self._tell(Status("running", stage="wrapping the model"))
            flags = SETTINGS[setting]
            ddp = DistributedDataParallel(
                model,
                find_unused_parameters=flags.get("find_unused_parameters", False),
                static_graph=flags.get("static_graph", False),
            )
            iterations, plan_at = schedule(self.job, self.rank, len(self.target.inputs), left_out)
            together = True
            for number in range(iterations):
                plan = plan_at(number)
                self._tell(Status("running", number + 1, "forward"))
                self._step(ddp, self.target, plan_of(plan))
                self._settle()
                if not self.target.zeroes:
                    ddp.zero_grad()
                self._tell(Status("done", number + 1))
                if together:
                    command = self.commands()
                    if command is None:
                        os._exit(0)  # nobody is left to answer to
                    together = command["go"] == "on"
            return Status("ok", iterations)
        except DdplintError as error:
            now, text = self.status, error.what
            return Status(
                "error", now.iteration, now.stage, outcome="raised", text=text, where=error.where, fix=error.fix, plan=plan
            )
        except BaseException as error:  # SystemExit and the like too: the target's, and this run's answer
            return self._failed(error, plan)

    def _failed(self, error: BaseException, plan: dict[str, Any] | None) -> Status:
        text = str(error)
        outcome = next((outcome for words, outcome in ERRORS.items() if words in text), "raised")
        if outcome == "raised" and (isinstance(error, dist.DistError) or any(words in text for words in BROKEN_OFF)):
            outcome = "hang"
        now = self.status
        plan = plan if now.iteration else None
        return Status("error", now.iteration, now.stage, outcome=outcome, text=said(error), plan=plan)

    def _clean(self) -> None:
        """Give up the run's model and process group: nothing of it is in the next."""
        gc.collect()
        if dist.is_initialized():
            _destroy_process_group()

    def _built(self, target: Target) -> nn.Module:
        """The model as the rank trains it: on the CPU, or on its GPU."""
        if not self.on_gpu:
            return build(target, "cpu", ()).model
        seed_everything(0)
        model = target.build().to("cuda")
        if any(isinstance(p, UninitializedTensorMixin) for p in model.parameters()):
            args, kwargs = self._moved(target.inputs[0]())
            with torch.no_grad():
                model(*args, **kwargs)
        return model

    def _moved(self, inputs: Inputs) -> Inputs:
        if not self.on_gpu:
            return on_device(inputs, "cpu")
        moved: Inputs = pytree.tree_map(lambda v: v.to("cuda") if isinstance(v, torch.Tensor) else v, inputs)
        return moved

    def _step(self, model: nn.Module, target: Target, plan: Plan) -> None:
        """One iteration of forward, loss and backward; nothing is in its way but what ``plan`` forces."""
        seed_everything(plan.seed)
        inputs = self._moved(target.inputs[plan.inputs]()) if target.step is None else None
        with ExitStack() as stack:
            if plan.answers:
                answers = Answers(dict(plan.answers))
                stack.enter_context(answering(answers))
                stack.enter_context(composites_open())
                stack.enter_context(_OnGpu("cpu", answers) if self.on_gpu else AnsweringMode("cpu", answers))
            else:
                stack.enter_context(nullcontext() if self.on_gpu else DeviceMode("cpu"))
            one_step(model, target, inputs, lambda: self._tell(Status("running", self.status.iteration, "backward")))

    def _settle(self) -> None:
        """Wait for the GPU without using the CPU, so that a collective that is never matched shows as waiting."""
        if self.on_gpu:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            while not event.query():  # type: ignore[no-untyped-call]
                time.sleep(0.01)

    # ------------------------------------------------------------------ saying how far it is

    def _tell(self, status: Status) -> None:
        with self.lock:
            self._now(status)

    def _now(self, status: Status) -> None:
        self.status = replace(status, backend=self.backend)
        self._send(asdict(self.status))

    def _send(self, data: Mapping[str, Any]) -> None:
        rest = memoryview(json.dumps(data).encode() + b"\n")
        while rest:
            rest = rest[os.write(self.events, rest) :]

    def _watch(self) -> None:
        """Look at the main thread for ever; tell when it has begun to wait, each time it still does, and when it goes on."""
        look = _Look()
        while True:
            time.sleep(BEAT)
            self._look(look)

    def _look(self, before: _Look) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        now, used = time.monotonic(), time.process_time() - time.thread_time()
        with self.lock:
            status = self.status
            idle = frame is not None and frame.f_code is before.code and used - before.used < BUSY
            idle = idle and (status.iteration, status.stage) == before.at and status.state in ("running", "waiting")
            before.code, before.used, before.at = frame and frame.f_code, used, (status.iteration, status.stage)
            if frame is None or not idle:
                before.idle_from = None
                if status.state == "waiting":
                    self._now(Status("running", status.iteration, status.stage))
                return
            before.idle_from = before.idle_from or now
            if now - before.idle_from >= (WAIT if self._in_collective(frame) else WAIT_ELSEWHERE):
                self._now(Status("waiting", status.iteration, status.stage, _place(frame), status.beat + 1))

    def _in_collective(self, frame: FrameType) -> bool:
        return not self.on_gpu and os.path.realpath(frame.f_code.co_filename).startswith(_TORCH)


def _place(frame: FrameType) -> str:
    """The user's own line that is being run, as "file:line (its text)", or ""."""
    site = call_site(frame)
    if site is None:
        return ""
    location = site.location()
    return f"{shown(location.file)}:{location.line}" + (f" ({location.text})" if location.text else "")


def one_step(
    model: nn.Module, target: Target, inputs: Inputs | None, before_backward: Callable[[], None] = lambda: None
) -> None:
    """Forward, loss and backward of ``target``; no backward where a step of its own has run it."""
    roots: list[Any] = []
    with patched(torch.autograd, _engine_run_backward=_noting(vars(torch.autograd)["_engine_run_backward"], roots)):
        if inputs is None:
            assert target.step is not None
            loss = take_step(target.step, model)
        else:
            args, kwargs = inputs
            loss, _ = target.loss(model(*args, **kwargs))
        before_backward()
        if not roots or (loss.grad_fn is not None and loss.grad_fn not in roots):
            loss.backward()


def _noting(plain: Callable[..., Any], roots: list[Any]) -> Callable[..., Any]:
    """Autograd's entry, with what a step calls backward on itself kept in ``roots``."""

    def run(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("accumulate_grad"):
            roots.extend(t.grad_fn for t in tensors if isinstance(t, torch.Tensor))
        return plain(tensors, *args, **kwargs)

    return run


class _OnGpu(AnsweringMode):
    """Answers forced, and devices left as the code asks for them."""

    def rewrite(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        """``func`` and its arguments, unchanged."""
        return func, args
