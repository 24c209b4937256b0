"""One path: build the target on a device, run forward and loss under the recorder, run backward, keep the answers."""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.nn.parallel.distributed import _find_tensors
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]  # not in __all__

from ddplint.errors import DdplintError
from ddplint.rules import matches
from ddplint.target import Inputs, Target, blame
from ddplint.trace.devices import DeviceMode, TraceDevice, Twins
from ddplint.trace.recorder import Recorder, Recording, composites_open, of_meta, tensors_in
from ddplint.trace.shapes import RememberingMode, Shapes
from ddplint.trace.sites import Site, call_site
from ddplint.trace.values import AnsweringMode, Answers, NoValue, Plan, answering


@dataclass(frozen=True, slots=True)
class Built:
    """A model fresh from its factory. ``sites``: (id of the owner, attribute) -> where a child was put into it.

    ``parameters`` are those the model held then, by first name: a step may leave it with others, or under other names
    (``torch.func.functional_call`` on shared weights does).
    """

    model: nn.Module
    twins: Twins  # the values of its small buffers, on meta
    trainable: frozenset[str]  # first qualified names of what required grad when the factory returned
    sites: dict[tuple[int, str], Site]
    parameters: dict[str, nn.Parameter]
    aliases: dict[str, tuple[str, ...]]  # first name -> the parameter's further names

    def names(self) -> dict[int, str]:
        """The parameters' first names by ``id``."""
        return {id(parameter): name for name, parameter in self.parameters.items()}


@dataclass(frozen=True, slots=True)
class Path:
    """One recorded run and the two answers beside the graph's.

    ``walked``: first names of the parameters that autograd's graph of the loss holds; ``from_outputs``: of those that DDP's
    walk from forward's return value finds; ``received``: of those that a real backward gave a gradient, None if it could
    not run. ``drew``: Python's or numpy's global generator moved.
    """

    built: Built
    recording: Recording
    outputs: tuple[torch.Tensor, ...]
    walked: frozenset[str]
    from_outputs: frozenset[str]
    received: frozenset[str] | None
    no_backward: str
    notice: str
    drew: bool
    seconds: float

    def __del__(self) -> None:
        if hasattr(self, "recording"):
            object.__setattr__(self, "outputs", ())
            self.recording.let_go()


def seed_everything(seed: int) -> None:
    """Seed torch's, Python's and (where it is imported) numpy's global generators."""
    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:  # without CUDA torch.manual_seed keeps a call for every time it is asked (torch/cuda/__init__.py, _lazy_call)
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def _generators() -> tuple[object, ...]:
    """The state of Python's and (where it is imported) numpy's global generator."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return (random.getstate(),)
    name, key, *rest = numpy.random.get_state()
    return random.getstate(), name, key.tobytes(), tuple(rest)


@contextmanager
def _creation_sites(sites: dict[tuple[int, str], Site]) -> Iterator[None]:
    """Note where each module and parameter is put into its owner (torch/nn/modules/module.py, registration hooks)."""

    def note(owner: nn.Module, name: str, value: object) -> None:
        if value is not None and (site := call_site(sys._getframe(1))) is not None:
            sites[id(owner), name] = site

    handles = [
        module_hooks.register_module_module_registration_hook(note),
        module_hooks.register_module_parameter_registration_hook(note),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def build(target: Target, device: TraceDevice, documented: Sequence[str], seed: int = 0) -> Built:
    """A new model on ``device``; frozen parameters that ``documented`` globs match are made trainable.

    On meta the factory runs on meta; where it can't (it reads values of what it makes) it runs on the CPU and the model is
    moved. Raises DdplintError for whatever the factory does wrong.
    """
    sites: dict[tuple[int, str], Site] = {}
    twins = Twins()
    seed_everything(seed)
    with _creation_sites(sites):
        try:
            with DeviceMode(device, twins):
                model = target.build()
        except DdplintError:
            raise
        except Exception as error:
            if device == "cpu":
                raise blame("the factory", error) from error
            sites.clear()
            model = _build_and_move(target, seed)
    if device == "meta" and any(not t.is_meta for t in (*model.parameters(), *model.buffers())):
        model = _moved(model, twins)
    if any(isinstance(p, UninitializedTensorMixin) for p in model.parameters()):
        _materialise(model, target, device)
    trainable = frozenset(name for name, p in model.named_parameters() if p.requires_grad)
    if not trainable:
        raise DdplintError(
            "the model has no trainable parameter",
            where=target.name,
            fix="let the factory return the model as it is trained",
        )
    for name, parameter in model.named_parameters():
        if name not in trainable and parameter.is_floating_point() and any(matches(glob, name) for glob in documented):
            parameter.requires_grad_(True)
    for parameter in model.parameters():
        parameter.grad = None
    parameters = dict(model.named_parameters())
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    aliases = {name: tuple(n for n in names[id(p)] if n != name) for name, p in parameters.items()}
    return Built(model, twins, trainable, sites, parameters, aliases)


def _build_and_move(target: Target, seed: int) -> nn.Module:
    seed_everything(seed)
    try:
        with DeviceMode("cpu"):
            model = target.build()
    except DdplintError:
        raise
    except Exception as error:
        raise blame("the factory", error) from error
    return model


def _moved(model: nn.Module, twins: Twins) -> nn.Module:
    """``model`` with every tensor on meta. ``Module.to`` would untie shared parameters; here each is moved once."""
    moved: dict[int, torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:
            return tensor
        new = moved.get(id(tensor))
        if new is None:
            new = tensor.detach().to("meta")
            if isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, tensor.requires_grad)
            else:
                twins.put(new, tensor)
            moved[id(tensor)] = new
        return new

    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = move(tensor)  # type: ignore[assignment]  # parameters stay parameters
    return model


def _materialise(model: nn.Module, target: Target, device: TraceDevice) -> None:
    """Lazy modules get their shapes from one forward, as PyTorch asks for before anything else is done with them."""
    with DeviceMode(device), torch.no_grad():
        for make in target.inputs[:1]:
            args, kwargs = on_device(make(), device)  # shapes are enough
            try:
                model(*args, **kwargs)
            except Exception as error:
                raise blame("the first forward of a lazy module", error) from error


def on_device(inputs: Inputs, device: TraceDevice, twins: Twins | None = None) -> Inputs:
    """Example inputs with every tensor on ``device``; ``twins`` keeps the values of small ones."""

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type == device:
            return value
        moved = value.detach().to(device).requires_grad_(value.requires_grad) if value.is_leaf else value.to(device)
        if twins is not None:
            twins.put(moved, value)
        return moved

    return pytree.tree_map(move, inputs)  # type: ignore[no-any-return]


def weight_bytes(model: nn.Module) -> int:
    """The size of all parameters and buffers, in bytes."""
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))


def trace(
    target: Target,
    built: Built,
    device: TraceDevice,
    plan: Plan,
    answers: Answers,
    *,
    reseed: bool = True,
    spell: bool = True,
) -> Path:
    """Run one step of ``target`` on ``built`` as ``plan`` says, recorded, with a backward; ``answers`` notes what it asks.

    Without ``reseed`` the generators go on from where the step before left them. Raises
    NoValue on meta where the run can't go on there, DdplintError for what the target does wrong.
    """
    start = time.perf_counter()
    model = built.model
    twins = Twins(built.twins)
    recorder = Recorder(model, device, answers, twins=twins, spell=spell, names=built.names())
    received: set[str] = set()

    def receives(name: str) -> Callable[[torch.Tensor | None], None]:
        def hook(gradient: torch.Tensor | None) -> None:
            # The hook also runs where a custom Function returned None, and for torch.autograd.grad.
            if gradient is not None and recorder.accumulating:
                received.add(name)

        return hook

    # Before the gradient is accumulated, so that an optimizer step in a hook of the target's can't take it away first.
    handles = [
        p.register_hook(receives(name))  # type: ignore[no-untyped-call]
        for name, p in built.parameters.items()
        if p.requires_grad
    ]
    no_backward = ""
    if reseed:
        seed_everything(plan.seed)
    try:
        inputs = on_device(target.inputs[plan.inputs](), device, twins) if target.step is None else None
        before = _generators()
        with no_collection(), _remembering(device), answering(answers), recorder.recording():
            loss, notice = _loss(target, model, recorder, inputs)
            if not recorder.backwards or (loss.grad_fn is not None and loss.grad_fn not in _roots(recorder)):
                if not loss.requires_grad:
                    raise DdplintError(
                        "the loss has no gradient: nothing it is made of requires grad when it is used",
                        where="loss",
                        fix="look for no_grad, detach or .data between the parameters and the loss",
                    )
                try:
                    torch.autograd.backward(loss)
                except NoValue:
                    raise
                except Exception as error:
                    first = reseed and plan == Plan(rank=plan.rank)
                    if device == "cpu" or not (first or of_meta(error)):  # where the first path went, no kernel is missing
                        raise blame("backward", error) from error
                    no_backward = str(error).split("\n", 1)[0]
        drew = before != _generators()
    finally:
        for handle in handles:
            handle.remove()
    found = [t for output in recorder.outputs for t in _find_tensors(output)]  # type: ignore[no-untyped-call]
    recording = recorder.finish(loss, found)
    names = built.names()
    functions = [f for call in recording.backwards if call.inside is None for f in call.functions]
    leaves = {id(t) for t in (loss, *found) if t.is_leaf}
    walked = _walk(functions, names) | {names[i] for i in leaves & set(names) if i == id(loss)}
    from_outputs = _walk([t.grad_fn for t in found], names) | {names[id(t)] for t in found if id(t) in names}
    return Path(
        built=built,
        recording=recording,
        outputs=tuple(found),
        walked=frozenset(walked),
        from_outputs=frozenset(from_outputs),
        received=None if no_backward else frozenset(received),
        no_backward=no_backward,
        notice=notice,
        drew=drew,
        seconds=time.perf_counter() - start,
    )


_shapes = Shapes()  # true of every run of the process


def _remembering(device: TraceDevice) -> AbstractContextManager[Any]:
    return RememberingMode(_shapes) if device == "meta" else nullcontext()


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection while a run is recorded and looked at: a record only grows, and each pass would walk it all."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _roots(recorder: Recorder) -> set[Any]:
    return {f for call in recorder.backwards for f in call.functions}


def _loss(target: Target, model: nn.Module, recorder: Recorder | None, inputs: Inputs | None) -> tuple[torch.Tensor, str]:
    """The loss of one step. What the target raises is blamed on its own line."""
    doing = "the step"
    try:
        if inputs is None:
            assert target.step is not None
            loss = target.step(model)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                raise DdplintError(
                    f"the step returned a {type(loss).__name__}",
                    where="step",
                    fix="it has to return the loss, a scalar tensor",
                )
            return loss, ""
        args, kwargs = inputs
        if recorder is not None:
            _name_inputs(recorder, args, kwargs)
        doing = "forward"
        output = model(*args, **kwargs)
        doing = "the loss"
        return target.loss(output)
    except DdplintError:
        raise
    except Exception as error:
        raise blame(doing, error) from error


def _name_inputs(recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for position, tensor in enumerate(tensors_in(args)):
        recorder.placeholder(f"arg_{position}", tensor)
    for name, value in kwargs.items():
        for position, tensor in enumerate(tensors_in(value)):
            recorder.placeholder(f"{name}_{position}" if position else str(name), tensor)


def walk(
    target: Target, built: Built, device: TraceDevice, plan: Plan, answers: Answers, *, reseed: bool = True
) -> frozenset[str]:
    """First names of the parameters that autograd's graph of the loss holds on ``plan``: a forward, and no record of it."""
    model, twins = built.model, Twins(built.twins)
    if reseed:
        seed_everything(plan.seed)
    inputs = on_device(target.inputs[plan.inputs](), device, twins) if target.step is None else None
    mode = AnsweringMode(device, answers, twins)
    with no_collection(), _remembering(device), answering(answers), composites_open(), mode:
        loss, _ = _loss(target, model, None, inputs)
    names = built.names()
    alone = {names[id(loss)]} if id(loss) in names else set()
    seen: list[Any] = []
    found = _walk([loss.grad_fn], names, seen)
    del loss
    seen.sort(key=lambda function: int(function._sequence_nr()))
    while seen:  # see Recording.let_go
        seen.pop()
    return frozenset(found | alone)


def _walk(functions: Sequence[Any], names: dict[int, str], kept: list[Any] | None = None) -> set[str]:
    """First names of the parameters whose gradient accumulators autograd's graph holds behind ``functions``.

    The walk of DDP's reducer (torch/csrc/distributed/c10d/reducer.cpp, ``search_unused_parameters``) in Python. ``kept``
    gets what it comes to.
    """
    found: set[str] = set()
    stack, seen = list(functions), set()
    while stack:
        function = stack.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        variable = getattr(function, "variable", None)
        if variable is not None:
            name = names.get(id(variable))
            if name is not None:
                found.add(name)
        stack.extend(f for f, _ in function.next_functions)
    if kept is not None:
        kept += seen
    return found
