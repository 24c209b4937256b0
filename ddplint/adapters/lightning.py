"""Lightning: ``training_step`` on a batch is the step, as under Lightning's own DDP strategy, and no Trainer is run.

Lightning wraps the LightningModule itself and sends ``training_step`` through the wrapper's forward
(lightning/pytorch/strategies/strategy.py, ``_ForwardRedirection``): what DDP's walk starts from is what ``training_step``
returns. Under manual optimization the reducer is prepared in ``manual_backward`` instead, from the loss given there
(lightning/pytorch/strategies/ddp.py, ``_DDPForwardRedirection`` and ``pre_backward``;
lightning/pytorch/overrides/distributed.py, ``prepare_for_backward``). The module here does the same by itself.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors

from ddplint.adapters.base import Adapted, Given, fresh, is_a, known, parameters_of
from ddplint.blame import blame
from ddplint.errors import DdplintError

NAME = "lightning"
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_PLACES = tuple((f"{package}.core.module", "LightningModule") for package in _PACKAGES)
_GIVE_BATCH = "write inputs() -> ((batch,), {}) beside the module: the arguments of training_step"


def is_class(factory: object) -> bool:
    """Whether ``factory`` is a LightningModule class itself."""
    classes = tuple(found for module, name in _PLACES if (found := known(module, name)) is not None)
    return isinstance(factory, type) and issubclass(factory, classes)


def adapt(made: Any, given: Given) -> Adapted | None:
    """``made`` as Lightning trains it; None if it is no LightningModule.

    With a loss or a step given beside it, forward stays forward: the module is an ordinary one with a Trainer to ask.
    Raises DdplintError where there is neither a batch nor what makes one.
    """
    if not is_a(made, *_PLACES):
        return None
    for module in made.modules():
        if is_a(module, *_PLACES):
            module._trainer = StandIn(made) if module is made else made._trainer
    _called(made, "setup", "fit")
    _called(made, "configure_model")
    if given.loss or given.step:
        return Adapted(NAME, made, trained=_trained)
    if getattr(made.forward, "func", None) is not _training_step:  # a factory may return one module twice
        made.forward = functools.partial(_training_step, made, made.forward)
    inputs, origin = (None, "") if given.inputs or given.known else _batch(made)
    manual = not made.automatic_optimization
    said = "; ".join(text for text in ("optimization is manual: no optimizer steps" if manual else "", origin) if text)
    notices = (f"lightning: {said}",) if said else ()
    return Adapted(NAME, made, inputs=inputs, loss=_loss, trained=_trained, zeroes=manual, notices=notices)


def _called(module: Any, hook: str, *args: Any) -> None:
    """Run a hook that Trainer.fit runs before it wraps the module: it may make layers."""
    try:
        getattr(module, hook)(*args)
    except Exception as error:
        fix = f"Trainer.fit calls it before training, and so does ddplint: return a module whose {hook} needs no data"
        raise blame(f"{hook}()", error, fix) from error


# ---------------------------------------------------------------------- training_step as forward


def _training_step(module: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
    """What DDP calls as forward: training_step, in which the module's forward is its own."""
    trainer: StandIn = module._trainer
    redirected = module.forward
    module.forward = forward
    if len(args) == 1 and not kwargs and _takes_index(module.training_step):
        args = (*args, trainer.global_step)
    trainer.strategy.losses.clear()
    try:
        output = module.training_step(*args, **kwargs)
    finally:
        module.forward = redirected
    trainer.global_step += 1
    if module.automatic_optimization:
        return output
    losses = tuple(trainer.strategy.losses)
    wrapper = _wrapper(module)
    if wrapper is None:
        return losses
    wrapper.require_backward_grad_sync = False  # manual_backward has prepared the reducer: DDP's forward must not
    handles: list[Any] = []
    handles.append(wrapper.register_forward_hook(lambda *_: _sync_again(wrapper, handles)))
    return _Done(losses)


@dataclass(frozen=True, slots=True, eq=False)
class _Done:
    """Losses that backward has been through already: DDP would put a node of its own behind those that it finds."""

    losses: tuple[torch.Tensor, ...]


def _sync_again(wrapper: DistributedDataParallel, handles: list[Any]) -> None:
    wrapper.require_backward_grad_sync = True
    handles.pop().remove()


def _wrapper(module: nn.Module) -> DistributedDataParallel | None:
    """The DDP wrapper whose forward is running, if ``module`` is what it wraps."""
    active = DistributedDataParallel._active_ddp_module
    return active if active is not None and active.module is module else None


def _takes_index(step: Any) -> bool:
    """Whether training_step has an argument for the batch's index."""
    required = [
        p
        for p in inspect.signature(step).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return len(required) > 1 or "batch_idx" in inspect.signature(step).parameters


def _loss(output: Any) -> Any:
    """The loss in what training_step returned; under manual optimization the last that was given to manual_backward.

    Lightning takes a tensor, or a dict with "loss" (lightning/pytorch/loops/optimization/automatic.py,
    ``ClosureResult.from_training_step_output``).
    """
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    if isinstance(output, _Done):
        output = output.losses
    if isinstance(output, tuple) and output and all(isinstance(loss, torch.Tensor) for loss in output):
        return output[-1]
    if isinstance(output, torch.Tensor):
        return output
    what = "called no manual_backward" if output == () else f"returned a {type(output).__name__}"
    raise DdplintError(
        f"training_step {what} on the example batch",
        where="training_step",
        fix='it has to return the loss, or a dict with "loss"; with manual optimization, to call self.manual_backward',
    )


# ---------------------------------------------------------------------- a batch


def _batch(module: Any) -> tuple[Any, str]:
    """What makes training_step's arguments, and what there is to say about them."""
    overridden = type(module).train_dataloader is not _plain(module, "train_dataloader")
    example = module.example_input_array
    if overridden:
        batch = _first_of(module)
        return lambda: ((fresh(batch),), {}), "training_step gets the first batch of train_dataloader()"
    if example is not None:
        return lambda: ((fresh(example),), {}), "example_input_array stands in for a batch of training_step"
    raise DdplintError(
        f"{type(module).__name__} has no example batch",
        where="inputs",
        fix=f"{_GIVE_BATCH}; or give it a train_dataloader or an example_input_array",
    )


def _plain(module: Any, name: str) -> Any:
    """The method that LightningModule itself has."""
    for place in _PLACES:
        base = known(*place)
        if base is not None and isinstance(module, base):
            return getattr(base, name)
    return None


def _first_of(module: Any) -> Any:
    """The first batch of train_dataloader(), drawn from a seed and without worker processes; no data is prepared."""
    state, python = torch.get_rng_state(), random.getstate()
    torch.default_generator.manual_seed(0)
    random.seed(0)
    try:
        loader = module.train_dataloader()
        if isinstance(loader, torch.utils.data.DataLoader):
            loader.num_workers, loader.timeout = 0, 0
        return next(iter(loader))
    except Exception as error:
        raise blame("train_dataloader()", error, _GIVE_BATCH) from error
    finally:
        torch.set_rng_state(state)
        random.setstate(python)


# ---------------------------------------------------------------------- what stands in for the Trainer


class StandIn:
    """The Trainer that a module may ask in training_step: the first epoch of a run that logs nothing."""

    barebones = True  # LightningModule.log returns at once
    current_epoch = 0
    max_epochs = 1
    max_steps = -1
    estimated_stepping_batches = num_training_batches = 1000
    accumulate_grad_batches = num_nodes = 1
    training, validating, testing, sanity_checking = True, False, False, False
    is_last_batch = fast_dev_run = should_stop = False
    gradient_clip_val = gradient_clip_algorithm = logger = datamodule = train_dataloader = val_dataloaders = _results = None
    precision = "32-true"

    def __init__(self, module: nn.Module) -> None:
        self.global_step = 0
        self.strategy = Strategy(module)
        self.loggers: list[Any] = []
        self.callbacks: list[Any] = []
        self.callback_metrics: dict[str, Any] = {}
        self.logged_metrics: dict[str, Any] = {}

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers of configure_optimizers."""
        found: list[Any] = self.strategy.configured().optimizers
        return found

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """What LightningModule.lr_schedulers reads the schedulers from."""
        found: list[Any] = self.strategy.configured().schedulers
        return found

    @property
    def global_rank(self) -> int:
        """The rank that is traced."""
        return dist.get_rank() if dist.is_initialized() else 0

    local_rank = global_rank

    @property
    def is_global_zero(self) -> bool:
        """Whether that is rank 0."""
        return self.global_rank == 0

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return dist.get_world_size() if dist.is_initialized() else 1

    num_devices = world_size

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"ddplint's stand-in for Lightning's Trainer has no {name!r}")


class Strategy:
    """The strategy behind the stand-in. It has slots: what it holds is no state of the model that a path changes."""

    __slots__ = ("__weakref__", "_configured", "losses", "module")

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module
        self.losses: list[torch.Tensor] = []  # what manual_backward got in the step that runs
        self._configured: Any = None

    @property
    def lightning_module(self) -> nn.Module:
        """The module that is trained."""
        return self.module  # type: ignore[no-any-return]

    @property
    def root_device(self) -> torch.device:
        """The device the module is on."""
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    @property
    def _lightning_optimizers(self) -> list[Any]:
        return self.configured().wrapped  # type: ignore[no-any-return]

    def configured(self) -> Any:
        """The optimizers and schedulers of configure_optimizers, made when they are first asked for."""
        if self._configured is None:
            answer = _configure(self.module)
            optimizers = [o for o in answer if isinstance(o, torch.optim.Optimizer)]
            schedulers = [SimpleNamespace(scheduler=s) for s in answer if not isinstance(s, torch.optim.Optimizer)]
            wrap = self._wrapper_class()
            wrapped = [wrap._to_lightning_optimizer(optimizer, self) for optimizer in optimizers]
            self._configured = SimpleNamespace(optimizers=optimizers, schedulers=schedulers, wrapped=wrapped)
        return self._configured

    def _wrapper_class(self) -> Any:
        package = next(p for p in _PACKAGES if is_a(self.module, (f"{p}.core.module", "LightningModule")))
        return known(f"{package}.core.optimizer", "LightningOptimizer")

    def backward(self, loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """``manual_backward``: the reducer is prepared for this loss, then the module's own backward runs."""
        self.losses.append(loss)
        wrapper = _wrapper(self.module)
        if wrapper is not None and torch.is_grad_enabled() and wrapper.require_backward_grad_sync:
            wrapper.require_forward_param_sync = True
            walked = wrapper.find_unused_parameters and not wrapper.static_graph
            wrapper.reducer._rebuild_buckets()
            wrapper.reducer.prepare_for_backward(list(_find_tensors(loss)) if walked else [])  # type: ignore[no-untyped-call]
        self.module.backward(loss, *args, **kwargs)

    def optimizer_step(self, optimizer: Any, closure: Any, **kwargs: Any) -> Any:
        """An optimizer's step runs its closure; weights stay as they are."""
        return closure()

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """As one process sees it: its own tensor, once a rank."""
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        gathered = torch.stack([tensor] * ranks) if ranks > 1 else tensor
        return gathered if sync_grads else gathered.detach()

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """The mean over ranks that all do the same."""
        return tensor

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """No rank is waited for."""


def _configure(module: Any) -> list[Any]:
    """Optimizers and schedulers of configure_optimizers, in the order it gives them."""
    try:
        answer = module.configure_optimizers()
    except Exception as error:
        raise blame("configure_optimizers()", error) from error
    return list(_leaves(answer))


def _leaves(answer: Any) -> Iterator[Any]:
    if isinstance(answer, Mapping):
        for key in ("optimizer", "lr_scheduler", "scheduler"):
            yield from _leaves(answer.get(key))
    elif isinstance(answer, (list, tuple)):
        for item in answer:
            yield from _leaves(item)
    elif hasattr(answer, "step"):
        yield answer


def _trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of the module's optimizers."""
    return parameters_of(o for o in _configure(model) if isinstance(o, torch.optim.Optimizer))
