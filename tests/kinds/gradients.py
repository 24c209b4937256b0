"""Grad modes, custom Functions, checkpoints, hooks, and losses made of gradients."""

# Models as people write them: what mypy says about PyTorch's own annotations is not what is tested here.
# mypy: allow-untyped-calls, allow-untyped-decorators, no-warn-return-any
# mypy: disable-error-code="arg-type, assignment, attr-defined, has-type, index, misc, operator, override"

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call, grad, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.kinds.kind import Kind, One, Two


class NoGrad(Two):
    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():  # <- severed: dead
            h = self.dead(x)
        return self.live(x) + h


class NoGradLater(Two):
    """The layer runs with gradients; what comes of it is used without."""

    def forward(self, x: Tensor) -> Any:
        h = self.dead(x)
        with torch.no_grad():  # <- severed: dead
            h = torch.tanh(h)
        return self.live(x) + h


class NoGradDecorator(Two):
    @torch.no_grad()  # <- severed: dead
    def features(self, x: Tensor) -> Any:
        return self.dead(x)

    def forward(self, x: Tensor) -> Any:
        return self.live(x) + self.features(x)


class NoGradOuterDecoratorOnly(Two):
    """A helper called inside is not where gradients were switched off."""

    def helper(self, x: Tensor) -> Any:
        return self.dead(x)

    @torch.no_grad()  # <- severed: dead
    def features(self, x: Tensor) -> Any:
        return self.helper(x)

    def forward(self, x: Tensor) -> Any:
        return self.live(x) + self.features(x)


class NoGradWrapped(Two):
    def forward(self, x: Tensor) -> Any:
        quiet = torch.no_grad()(self.dead.forward)
        return self.live(x) + quiet(x)  # <- severed: dead


class NoGradGenerator(Two):
    @torch.no_grad()  # <- severed: dead
    def rows(self, x: Tensor) -> Iterator[Tensor]:
        for row in x.unbind():
            yield self.dead(row)

    def forward(self, x: Tensor) -> Any:
        return self.live(x) + torch.stack(list(self.rows(x)))


class SetGradEnabled(Two):
    def forward(self, x: Tensor) -> Any:
        with torch.set_grad_enabled(False):  # <- severed: dead
            h = self.dead(x)
        return self.live(x) + h


class SetGradEnabledFunction(Two):
    def forward(self, x: Tensor) -> Any:
        torch.set_grad_enabled(False)  # <- severed: dead
        h = self.dead(x)
        torch.set_grad_enabled(True)
        return self.live(x) + h


class SetGradEnabledDecorator(Two):
    @torch.set_grad_enabled(False)  # <- severed: dead
    def features(self, x: Tensor) -> Any:
        return self.dead(x)

    def forward(self, x: Tensor) -> Any:
        return self.live(x) + self.features(x)


class EnabledWithin(Two):
    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():  # <- severed: dead
            with torch.enable_grad():
                y = self.live(x)
            h = self.dead(x)
        return y + h


class NestedNoGrad(Two):
    """The outer block is where gradients went off."""

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():  # <- severed: dead
            with torch.no_grad():
                x = x + 1
            h = self.dead(x)
        return self.live(x) + h


class InferenceMode(Two):
    def forward(self, x: Tensor) -> Any:
        with torch.inference_mode():  # <- severed: dead
            h = self.dead(x)
        return self.live(x) + h.clone()


class InferenceModeDecorator(Two):
    @torch.inference_mode()  # <- severed: dead
    def features(self, x: Tensor) -> Any:
        return self.dead(x)

    def forward(self, x: Tensor) -> Any:
        return self.live(x) + self.features(x).clone()


class InferenceModeOff(One):
    def forward(self, x: Tensor) -> Any:
        with torch.inference_mode(False):
            return self.live(x)


class FrozenByForward(Two):
    """``requires_grad_(False)`` during forward: no gradient from here on."""

    def forward(self, x: Tensor) -> Any:
        return self.live(x) + self.dead(x).detach().requires_grad_(False)  # <- severed: dead


class InputRequiresGrad(One):
    def forward(self, x: Tensor) -> Any:
        return self.live(x.requires_grad_())


class FreshLeaf(Two):
    """A detached value made a leaf of its own: gradient ends there."""

    def forward(self, x: Tensor) -> Any:
        leaf = self.dead(x).detach().requires_grad_()  # <- severed: dead
        return self.live(x) * leaf


class ParameterOfAValue(Two):
    def forward(self, x: Tensor) -> Any:
        made = nn.Parameter(self.dead(x))  # <- severed: dead
        return self.live(x) * made


class _Half(torch.autograd.Function):
    """Gradient for the first input, None for the second."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return first + second

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None


class FunctionReturnsNone(Two):
    never_from_outputs = ()

    def forward(self, x: Tensor) -> Any:
        return _Half.apply(self.live(x), self.dead(x))  # <- severed: dead


class FunctionReturnsNoneForALaterUse(One):
    """The other way of the same value carries gradient."""

    def forward(self, x: Tensor) -> Any:
        h = self.live(x)
        return _Half.apply(h, h * 2)


class _Stack(torch.autograd.Function):
    """Tensors in a list are no inputs to autograd."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, others: list[Tensor]) -> Tensor:
        return first + sum(others)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None


class FunctionNestedTensors(Two):
    def forward(self, x: Tensor) -> Any:
        return _Stack.apply(self.live(x), [self.dead(x)])  # <- severed: dead


class _Scaled(torch.autograd.Function):
    """The newer form, with ``setup_context``, and an output that is not differentiable."""

    @staticmethod
    def forward(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        return x * scale, x.argmax(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.scale = inputs[1]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.scale, None


class FunctionTwoOutputs(Two):
    def forward(self, x: Tensor) -> Any:
        scaled, _ = _Scaled.apply(self.live(x), 2.0)
        _, index = _Scaled.apply(self.dead(x), 2.0)  # <- severed: dead
        return scaled * index[:, None]


class _Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * 2


class FunctionInPlace(One):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x) + 1
        _Dirty.apply(y)
        return y


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return -grads[0]


class GradientReversal(One):
    def forward(self, x: Tensor) -> Any:
        return _Reverse.apply(self.live(x))


class _Remade(torch.autograd.Function):
    """Runs its module again in backward, as reversible layers do; the module's own parameters are found there."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.run(x)
        torch.autograd.backward(y, grads[0])
        return None, x.grad


class ReversibleFunction(Kind):
    never_from_outputs = ("inner.*",)

    def __init__(self) -> None:
        super().__init__()
        self.live = nn.Linear(4, 4)
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return _Remade.apply(self.inner, self.live(x))


class CheckpointReentrant(One):
    never_from_outputs = ("inner.*",)

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inner, self.live(x), use_reentrant=True)


class CheckpointReentrantUnused(Two):
    """Inside the checkpointed part, too, what is not used is not used."""

    never_from_outputs = ("dead.*", "inner.*")

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def run(self, x: Tensor) -> Any:
        return self.inner(x) + self.dead(x).detach()  # <- severed: dead

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.run, self.live(x), use_reentrant=True)


class CheckpointReentrantWithoutGrad(Two):
    """A re-entrant checkpoint of inputs that need no gradient gives none to anything inside."""

    def forward(self, x: Tensor) -> Any:
        return self.live(x) + checkpoint(self.dead, x, use_reentrant=True)  # <- severed: dead


class CheckpointReentrantNested(One):
    never_from_outputs = ("inner.*", "innermost.*")

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.innermost = nn.Linear(4, 4)

    def run(self, x: Tensor) -> Any:
        return checkpoint(self.innermost, self.inner(x), use_reentrant=True)

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.run, self.live(x), use_reentrant=True)


class CheckpointNonReentrant(Two):
    def run(self, x: Tensor) -> Any:
        return self.live(x) + self.dead(x).detach()  # <- severed: dead

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.run, x, use_reentrant=False)


class CheckpointSequential(One):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))

    def forward(self, x: Tensor) -> Any:
        return checkpoint_sequential(self.layers, 2, self.live(x), use_reentrant=False)


class CheckpointKeywords(Two):
    def run(self, x: Tensor, *, scale: float, other: dict[str, Tensor]) -> Any:
        return self.live(x) * scale + other["h"]

    def forward(self, x: Tensor) -> Any:
        h = self.dead(x).detach()  # <- severed: dead
        return checkpoint(self.run, x, scale=2.0, other={"h": h}, use_reentrant=False, preserve_rng_state=False)


class Anomaly(One):
    def forward(self, x: Tensor) -> Any:
        with torch.autograd.set_detect_anomaly(True):
            return self.live(x)


class ForwardMode(One):
    replay = "forward mode's dual numbers live inside jvp"

    def forward(self, x: Tensor) -> Any:
        value, slope = jvp(lambda v: torch.tanh(self.live(v)), (x,), (torch.ones_like(x),))
        return value + slope


class Ensemble(Kind):
    replay = "inside vmap tensors are batched"

    """Parameters of several models stacked, and one model run over them."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Any:
        weights = {n: torch.stack([dict(m.named_parameters())[n] for m in self.members]) for n in ("weight", "bias")}
        first = self.members[0]
        return vmap(lambda w: functional_call(first, w, (x,)))(weights)


class AdversarialInput(One):
    """Forward runs a backward of its own to perturb the input."""

    def forward(self, x: Tensor) -> Any:
        x = x.requires_grad_()
        self.live(x).square().mean().backward()
        assert x.grad is not None
        return self.live(x.detach() + 0.1 * x.grad.sign())


class MultiGradHook(One):
    def forward(self, x: Tensor) -> Any:
        y, z = self.live(x), self.live(x * 2)
        torch.autograd.graph.register_multi_grad_hook((y, z), lambda grads: None)
        return y + z


class SavedOnCpu(One):
    def forward(self, x: Tensor) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return torch.tanh(self.live(x)) ** 2


class GradientLoss(Two):
    """Forces from an energy: a constant shift of the energy drops out of its derivative."""

    never_from_outputs = ("dead.bias",)

    def forward(self, x: Tensor) -> Any:
        x = x.requires_grad_()
        energy = torch.tanh(self.live(x)).sum() + self.dead(x).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)  # <- severed: dead.bias
        return force

    @staticmethod
    def loss(output: Any) -> Tensor:
        return output.square().mean()


class GradientPenalty(One):
    def forward(self, x: Tensor) -> Any:
        mixed = (x * 0.5).requires_grad_()
        score = torch.tanh(self.live(mixed))
        (slope,) = torch.autograd.grad(score, mixed, torch.ones_like(score), create_graph=True, retain_graph=True)
        return score.mean() + (slope.norm(2, dim=1) - 1).square().mean()


class SecondDerivative(One):
    def forward(self, x: Tensor) -> Any:
        x = x.requires_grad_()
        y = torch.tanh(self.live(x)).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        return second


class GradientWithoutGraph(Two):
    """Without ``create_graph`` the gradient is a constant."""

    def forward(self, x: Tensor) -> Any:
        x = x.requires_grad_()
        (slope,) = torch.autograd.grad(torch.tanh(self.dead(x)).sum(), x)  # <- severed: dead
        return self.live(x) * slope


class FunctionalCall(Two):
    def forward(self, x: Tensor) -> Any:
        doubled = {name: 2 * p for name, p in self.live.named_parameters()}
        halved = {name: 0.5 * p.detach() for name, p in self.dead.named_parameters()}  # <- severed: dead
        return functional_call(self.live, doubled, (x,)) + functional_call(self.dead, halved, (x,))


class InnerLoop(One):
    """One step of gradient descent on the weights, differentiated through."""

    def forward(self, x: Tensor) -> Any:
        weights = dict(self.live.named_parameters())
        inner = functional_call(self.live, weights, (x,)).square().mean()
        grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        faster = {name: p - 0.1 * g for (name, p), g in zip(weights.items(), grads, strict=True)}
        return functional_call(self.live, faster, (x,))


class FuncGrad(One):
    def forward(self, x: Tensor) -> Any:
        return grad(lambda v: torch.tanh(self.live(v)).sum())(x)


class FuncVmap(One):
    replay = "inside vmap tensors are batched"

    def forward(self, x: Tensor) -> Any:
        return vmap(lambda row: torch.tanh(self.live(row)))(x)


class FuncVmapCut(Two):
    replay = "inside vmap tensors are batched"

    def forward(self, x: Tensor) -> Any:
        return vmap(lambda row: self.live(row) + self.dead(row).detach())(x)  # <- severed: dead


class FuncVjp(One):
    def forward(self, x: Tensor) -> Any:
        value, pull = vjp(lambda v: torch.tanh(self.live(v)), x)
        return pull(torch.ones_like(value))[0] + value


class FuncJacobian(One):
    replay = "inside vmap tensors are batched"

    def forward(self, x: Tensor) -> Any:
        return vmap(jacrev(lambda v: torch.tanh(self.live(v))))(x)


class FunctionalJacobian(One):
    def forward(self, x: Tensor) -> Any:
        return torch.autograd.functional.jacobian(lambda v: torch.tanh(self.live(v)).sum(0), x, create_graph=True)


class TensorHook(One):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        y.register_hook(lambda g: g * 0.5)
        return torch.tanh(y)


class HookThatComputes(Two):
    """What a hook computes in backward is no part of the forward's graph."""

    def forward(self, x: Tensor) -> Any:
        h = self.dead(x)  # <- discarded: dead
        y = self.live(x)
        y.register_hook(lambda g: g + h.detach().mean())
        return y


class ForwardHook(Two):
    """A hook replaces what the layer returned."""

    def __init__(self) -> None:
        super().__init__()
        self.dead.register_forward_hook(lambda module, args, output: args[0] * 2)

    def forward(self, x: Tensor) -> Any:
        return self.live(x) + self.dead(x)  # <- discarded: dead


class ForwardPreHook(One):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.live.register_forward_pre_hook(lambda module, args: (args[0] * self.scale,))

    def forward(self, x: Tensor) -> Any:
        return self.live(x)


class CapturedByHook(Two):
    """Only what a hook captured is in the output; the rest of the way is computed for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.captured: list[Tensor] = []
        self.live.register_forward_hook(lambda module, args, output: self.captured.append(output))

    def forward(self, x: Tensor) -> Any:
        self.captured.clear()
        self.dead(torch.relu(self.live(x)))  # <- discarded: dead
        return self.captured[0]


class BackwardHook(One):
    def __init__(self) -> None:
        super().__init__()
        self.live.register_full_backward_hook(lambda module, given, got: (given[0] * 2,) if given[0] is not None else None)

    def forward(self, x: Tensor) -> Any:
        return torch.tanh(self.live(x.requires_grad_()))


class StepBackwardItself(Two):
    """A step that calls backward itself and returns the loss for the log."""

    @staticmethod
    def step(model: Any) -> Tensor:
        loss = model(torch.randn(2, 4))
        loss.backward()
        return loss.detach()

    def forward(self, x: Tensor) -> Any:
        return self.live(x).square().mean() + self.dead(x).detach().mean()  # <- severed: dead


class StepBackwardAndLoss(Kind):
    """Backward on one part within the step, the other part returned with its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 1)
        self.second = nn.Linear(4, 1)

    @staticmethod
    def step(model: Any) -> Tensor:
        x = torch.randn(2, 4)
        model.first(x).mean().backward()
        return model.second(x).mean()


class StepReturnsWhatItBackwarded(One):
    @staticmethod
    def step(model: Any) -> Tensor:
        loss = model(torch.randn(2, 4))
        loss.backward()
        return loss

    def forward(self, x: Tensor) -> Any:
        return self.live(x).square().mean()


class StepAdversarial(Kind):
    """Generator and discriminator in turn, each by its own backward."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.discriminator = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        self.spare = nn.Linear(4, 1)  # <- uncalled: spare

    @staticmethod
    def step(model: Any) -> Tensor:
        real, noise = torch.randn(2, 4), torch.randn(2, 4)
        fake = model.generator(noise)
        wrong = F.softplus(-model.discriminator(real)).mean() + F.softplus(model.discriminator(fake.detach())).mean()
        wrong.backward()
        fooled = F.softplus(-model.discriminator(fake)).mean()
        fooled.backward(inputs=list(model.generator.parameters()))
        return fooled.detach()


class StepAccumulates(One):
    """Several backwards of micro-batches."""

    @staticmethod
    def step(model: Any) -> Tensor:
        total = torch.zeros(())
        for part in torch.randn(4, 4).split(2):
            loss = model.live(part).square().mean()
            loss.backward()
            total += loss.detach()
        return total


class StepBackwardOfList(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 1)
        self.second = nn.Linear(4, 1)

    @staticmethod
    def step(model: Any) -> Tensor:
        x = torch.randn(2, 4)
        losses = [model.first(x).mean(), model.second(x).mean()]
        torch.autograd.backward(losses)
        return sum(loss.detach() for loss in losses)


class StepOptimizer(Two):
    """An optimizer in the step."""

    @staticmethod
    def step(model: Any) -> Tensor:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = model(torch.randn(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def forward(self, x: Tensor) -> Any:
        return self.live(x) + self.dead(x).argmax()  # <- severed: dead


class MovingAverage(Two):
    """A teacher whose weights follow the student's by ``.data``."""

    def forward(self, x: Tensor) -> Any:
        for slow, fast in zip(self.dead.parameters(), self.live.parameters(), strict=True):
            slow.data.mul_(0.9).add_(fast.data, alpha=0.1)
        with torch.no_grad():  # <- severed: dead
            goal = self.dead(x)
        return (self.live(x) - goal).square().mean()


class MovingAverageNoGrad(Two):
    @torch.no_grad()
    def follow(self) -> None:
        for slow, fast in zip(self.dead.parameters(), self.live.parameters(), strict=True):
            slow.lerp_(fast, 0.1)

    def forward(self, x: Tensor) -> Any:
        self.follow()
        return self.live(x) - self.dead(x).detach()  # <- severed: dead


class WithoutLoss(Two):
    def forward(self, x: Tensor) -> Any:
        return {"loss": self.live(x).mean(), "rest": self.dead(x)}  # <- output-only: dead

    never_from_outputs = ()

    @staticmethod
    def loss(output: Any) -> Tensor:
        return output["loss"]
