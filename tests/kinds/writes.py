"""In-place operations, writes through views, and what reads a tensor without its gradient."""

# Models as people write them: what mypy says about PyTorch's own annotations is not what is tested here.
# mypy: allow-untyped-calls, allow-untyped-decorators, no-warn-return-any
# mypy: disable-error-code="arg-type, assignment, attr-defined, has-type, index, misc, operator, override"

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.kinds.kind import Kind, One, Two


class InPlaceAdd(One):
    def forward(self, x: Tensor) -> Any:
        y = x.clone()
        y.add_(self.live(x))
        y *= 2
        return y


class InPlaceActivation(One):
    def forward(self, x: Tensor) -> Any:
        return F.relu(F.dropout(self.live(x), 0.5, inplace=True), inplace=True)


class Zeroed(One):
    def forward(self, x: Tensor) -> Any:
        return self.live(x).zero_() + 1  # a gradient of zeros is a gradient


class Overwritten(Two):
    """A copy over the value still passes zeros back to it."""

    def forward(self, x: Tensor) -> Any:
        return self.dead(x).copy_(self.live(x))


class DetachedInPlace(Two):
    def forward(self, x: Tensor) -> Any:
        h = self.dead(x)
        h.detach_()  # <- severed: dead
        return self.live(x) + h


class ItemAssigned(One):
    def forward(self, x: Tensor) -> Any:
        y = torch.zeros(2, 4)
        y[0] = self.live(x)[1]
        return y


class SliceAssigned(One):
    def forward(self, x: Tensor) -> Any:
        y = torch.zeros(2, 8)
        y[:, :4] = x
        y[:, 4:] += self.live(x)
        return y


class MaskAssigned(One):
    def forward(self, x: Tensor) -> Any:
        y = torch.zeros(2, 4)
        y[torch.tensor([True, False])] = self.live(x)[:1]
        return y


class IndexPut(One):
    def forward(self, x: Tensor) -> Any:
        y = torch.zeros(3, 4)
        y.index_put_((torch.tensor([0, 2]),), self.live(x), accumulate=True)
        return y


class IndexAdd(One):
    def forward(self, x: Tensor) -> Any:
        return torch.zeros(3, 4).index_add_(0, torch.tensor([0, 2]), self.live(x))


class ScatterReduce(One):
    def forward(self, x: Tensor) -> Any:
        index = torch.zeros(2, 4, dtype=torch.long)
        return torch.zeros(1, 4).scatter_reduce_(0, index, self.live(x), reduce="amax", include_self=False)


class MaskedFill(One):
    def forward(self, x: Tensor) -> Any:
        return self.live(x).masked_fill_(x > 0, 0.0)


class ViewWritten(One):
    def forward(self, x: Tensor) -> Any:
        y = torch.zeros(2, 8)
        y.view(4, 4)[1:3].copy_(self.live(x))
        return y


class ViewOfAViewWritten(One):
    def forward(self, x: Tensor) -> Any:
        y = torch.zeros(4, 4)
        rows = y[:2]
        columns = rows.t()
        columns.add_(self.live(x).t())
        return y.sum(0)


class BaseWritten(One):
    def forward(self, x: Tensor) -> Any:
        y = torch.zeros(2, 4)
        row = y[0]
        y += self.live(x)
        return row


class SiblingWritten(One):
    """Another view of the same base is written: autograd gives the read one the base's whole history."""

    def forward(self, x: Tensor) -> Any:
        y = x.clone()
        read, written = y[0], y[1]
        written.copy_(self.live(x)[0])
        return read * 2


class WrittenTwice(One):
    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        y = torch.zeros(2, 4)
        y[0] = self.live(x)[0]
        y[1] = self.second(x)[0]
        return y


class WrittenTooLate(Two):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        result = y.clone()
        y.add_(self.dead(x))  # <- discarded: dead
        return result


class Diagonal(One):
    def forward(self, x: Tensor) -> Any:
        y = torch.zeros(4, 4)
        y.diagonal().copy_(self.live(x)[0])
        return y


class ParameterWrittenInto(Two):
    """A parameter's value copied under no_grad is not its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():  # <- severed: dead
            self.mean.lerp_(self.dead(x).mean(0), 0.5)
        return self.live(x) + self.mean


class OutArgument(Two):
    def forward(self, x: Tensor) -> Any:
        y = torch.empty(2, 4)
        torch.mm(x, self.dead.weight.detach(), out=y)  # <- severed: dead.weight
        torch.add(y, self.dead.bias.data, out=y)  # <- severed: dead.bias
        return self.live(x) + y


class OutUnderNoGrad(Two):
    def forward(self, x: Tensor) -> Any:
        y = torch.empty(2, 4)
        with torch.no_grad():  # <- severed: dead
            torch.add(x, self.dead(x), out=y)
        return self.live(x) * y


class Foreach(One):
    def forward(self, x: Tensor) -> Any:
        first, second = torch._foreach_mul([self.live(x), x], [2.0, 3.0])
        return first + second


class ForeachInPlace(One):
    def forward(self, x: Tensor) -> Any:
        parts = [x.clone(), x.clone()]
        torch._foreach_add_(parts, [self.live(x), x])
        return parts[0] + parts[1]


class ForeachOnlyOne(Two):
    """One node of autograd for both: DDP's walk finds what the loss gives no gradient."""

    never_from_outputs = ()

    def forward(self, x: Tensor) -> Any:
        first, _ = torch._foreach_add([self.live(x), self.dead(x)], 1.0)  # <- severed: dead
        return first


class Detached(Two):
    def forward(self, x: Tensor) -> Any:
        return self.live(x) + self.dead(x).detach()  # <- severed: dead


class DetachedFunction(Two):
    def forward(self, x: Tensor) -> Any:
        h = torch.relu(self.dead(x))
        h = torch.detach(h)  # <- severed: dead
        return self.live(x) + torch.relu(h)


class DataRead(Two):
    def forward(self, x: Tensor) -> Any:
        h = self.dead(x)
        return self.live(x) + h.data  # <- severed: dead


class DataWritten(Two):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        y.data.copy_(self.dead(x))  # <- severed: dead
        return y * 2


class DataReplaced(Two):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        y.data = self.dead(x)  # <- severed: dead
        return y * 2


class Argmax(Two):
    def forward(self, x: Tensor) -> Any:
        choice = self.dead(x).argmax(-1)  # <- severed: dead
        return self.live(x)[:, 0] * choice


class TopkIndices(Two):
    def forward(self, x: Tensor) -> Any:
        chosen = self.dead(x).topk(2).indices  # <- severed: dead
        return self.live(x).gather(-1, chosen)


class SortValues(One):
    def forward(self, x: Tensor) -> Any:
        values, _ = self.live(x).sort(-1)
        return values


class IntegerCast(Two):
    def forward(self, x: Tensor) -> Any:
        steps = self.dead(x).long()  # <- severed: dead
        return self.live(x) * steps


class Compared(Two):
    def forward(self, x: Tensor) -> Any:
        return torch.where(self.dead(x) > 0, self.live(x), x)  # <- severed: dead


class Rounded(One):
    def forward(self, x: Tensor) -> Any:
        return self.live(x).round() + self.live(x).sign()  # gradients of zeros


class OneHot(Two):
    def forward(self, x: Tensor) -> Any:
        hot = F.one_hot(self.dead(x).argmax(-1), 4)  # <- severed: dead
        return self.live(x) * hot


class StraightThrough(One):
    def forward(self, x: Tensor) -> Any:
        soft = self.live(x).softmax(-1)
        hard = F.one_hot(soft.argmax(-1), 4)
        return hard - soft.detach() + soft


class GumbelHard(One):
    def forward(self, x: Tensor) -> Any:
        return F.gumbel_softmax(self.live(x), hard=True)


class ZerosLike(Two):
    def forward(self, x: Tensor) -> Any:
        return self.live(x) + torch.zeros_like(self.dead(x))  # <- discarded: dead


class ShapeOnly(Two):
    def forward(self, x: Tensor) -> Any:
        size = self.dead(x).shape[-1]  # <- discarded: dead
        return self.live(x) / size


class ExpandAs(Two):
    """The other tensor gives its shape alone."""

    def forward(self, x: Tensor) -> Any:
        return self.live(x)[:1].expand_as(self.dead(x))  # <- discarded: dead


class ViewAs(Two):
    def forward(self, x: Tensor) -> Any:
        return self.live(x).view(-1).view_as(self.dead(x)).reshape_as(self.dead(x))  # <- discarded: dead


class TypeAs(Two):
    def forward(self, x: Tensor) -> Any:
        return self.live(x).type_as(self.dead(x).double())  # <- discarded: dead


class ToOther(Two):
    def forward(self, x: Tensor) -> Any:
        h = self.dead(x).double()  # <- discarded: dead
        return self.live(x).to(h)


class Meshgrid(Two):
    """Several tensors in, as many out, each made of one."""

    def forward(self, x: Tensor) -> Any:
        rows, _ = torch.meshgrid(self.live(x)[0], self.dead(x)[0], indexing="ij")  # <- discarded: dead
        return rows


class BroadcastTensors(Two):
    def forward(self, x: Tensor) -> Any:
        first, _ = torch.broadcast_tensors(self.live(x), self.dead(x)[:1])  # <- discarded: dead
        return first


class AtLeast(Two):
    def forward(self, x: Tensor) -> Any:
        first, _ = torch.atleast_3d(self.live(x), self.dead(x))  # <- discarded: dead
        return first


class Bernoulli(One):
    def forward(self, x: Tensor) -> Any:
        return torch.bernoulli(self.live(x).sigmoid()) + torch.normal(self.live(x), 1.0)  # gradients of zeros


class Distributions(Two):
    """rsample keeps the gradient, sample does not."""

    def forward(self, x: Tensor) -> Any:
        kept = torch.distributions.Normal(self.live(x), 1.0).rsample()
        with_none = torch.distributions.Normal(self.dead(x), 1.0).sample()  # <- severed: dead
        return kept + with_none


class PolicyGradient(Two):
    def forward(self, x: Tensor) -> Any:
        policy = torch.distributions.Categorical(logits=self.live(x))
        reward = self.dead(x).mean(-1).detach()  # <- severed: dead
        return -policy.log_prob(policy.sample()) * reward - 0.1 * policy.entropy()


class FiniteAssert(One):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        assert torch.isfinite(y).all()
        torch._assert(y.shape[0] == 2, "two rows")
        return y


class FromNumpy(One):
    def forward(self, x: Tensor) -> Any:
        table = torch.from_numpy(np.linspace(0, 1, 4, dtype=np.float32))
        return self.live(x) * table + torch.as_tensor(np.ones(4, dtype=np.float32)) + np.pi


class ToNumpyAndBack(Two):
    replay = "numpy's result is not a torch call's"

    def forward(self, x: Tensor) -> Any:
        h = torch.from_numpy(np.tanh(self.dead(x).detach().cpu().numpy()))  # <- severed: dead
        return self.live(x) + h


class DeepCopied(Two):
    """A copy made in forward has parameters of its own."""

    def forward(self, x: Tensor) -> Any:
        frozen = copy.deepcopy(self.dead).requires_grad_(False)  # <- severed: dead
        return self.live(x) + frozen(x)


class NewTensor(Two):
    def forward(self, x: Tensor) -> Any:
        scale = torch.tensor(self.dead(x).mean())  # <- severed: dead
        return self.live(x) * scale


class AsTensor(One):
    def forward(self, x: Tensor) -> Any:
        return x * torch.as_tensor(self.live(x))


class Item(Two):
    def forward(self, x: Tensor) -> Any:
        scale = self.dead(x).mean().item()  # <- severed: dead
        return self.live(x) * scale


class Float(Two):
    def forward(self, x: Tensor) -> Any:
        scale = float(self.dead(x).mean())  # <- severed: dead
        return self.live(x) * scale


class Numpy(Two):
    replay = "numpy's result is not a torch call's"

    def forward(self, x: Tensor) -> Any:
        mean = self.dead(x).detach().numpy().mean()  # <- severed: dead
        return self.live(x) * float(mean)


class BranchOnValue(Two):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        if self.dead(x).sum() < 100:  # <- discarded: dead
            y = y * 2
        return y


class Iterated(One):
    def forward(self, x: Tensor) -> Any:
        total = torch.zeros(4)
        for row in self.live(x):
            total = total + row
        return total


class UnpackedPart(Two):
    def forward(self, x: Tensor) -> Any:
        first, _ = torch.stack([self.live(x), self.dead(x)])  # both are in the one tensor that is unbound
        return first


class ChunkedWeights(One):
    """One weight cut into parts of which one is not used: the whole weight still gets a gradient."""

    def forward(self, x: Tensor) -> Any:
        top, _ = self.live.weight.chunk(2)
        return F.linear(x, top) + self.live.bias[:2]


class Discarded(Two):
    def forward(self, x: Tensor) -> Any:
        h = self.dead(x)
        h = torch.tanh(h)  # <- discarded: dead
        return self.live(x)


class DiscardedBranches(Two):
    def forward(self, x: Tensor) -> Any:
        h = self.dead(x)
        first = torch.tanh(h)
        torch.cat([first, h.relu()])  # <- discarded: dead
        return self.live(x)


class OutputOnly(Two):
    def forward(self, x: Tensor) -> Any:
        return self.live(x), torch.tanh(self.dead(x))  # <- output-only: dead

    never_from_outputs = ()

    @staticmethod
    def loss(output: Any) -> Tensor:
        return output[0].square().mean()


class OutputDetachedByTheLoss(Two):
    never_from_outputs = ()

    def forward(self, x: Tensor) -> Any:
        return self.live(x), self.dead(x)

    @staticmethod
    def loss(output: Any) -> Tensor:
        first, second = output
        return (first * second.detach()).mean()  # <- output-only: dead


class ComplexParts(One):
    def forward(self, x: Tensor) -> Any:
        z = torch.complex(self.live(x), x)
        return z.real * z.imag


class ComplexParameter(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.live = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.dead = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Any:
        return (torch.fft.rfft(x, n=6) * self.live).abs() + self.dead.detach().abs()  # <- severed: dead


class ComplexViewWritten(One):
    def forward(self, x: Tensor) -> Any:
        z = torch.zeros(2, 4, dtype=torch.complex64)
        torch.view_as_real(z)[..., 0] = self.live(x)
        return z.abs().square()


class SparseProduct(One):
    def forward(self, x: Tensor) -> Any:
        matrix = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.ones(2), (2, 2))
        return torch.sparse.mm(matrix, self.live(x))


class SparseValues(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Any:
        matrix = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), self.values, (2, 2))
        return torch.sparse.mm(matrix, x)


class Unfolded(One):
    def forward(self, x: Tensor) -> Any:
        return torch.einsum("bij,bj->bi", self.live(x).unfold(1, 2, 1), x[:, :2])


class Cumulated(One):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x).cumsum(0)
        y[1:] -= y[:-1].clone()
        return y


class Transposed(One):
    def forward(self, x: Tensor) -> Any:
        return (x @ self.live.weight.T.mT.mH.H + self.live.bias).real


class Expanded(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 4))
        self.position = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Any:
        y = torch.cat([self.token.expand(1, -1), x])
        y += self.position
        return y
