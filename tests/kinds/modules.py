"""PyTorch's own modules, shared and rewritten weights, and what forward returns."""

# Models as people write them: what mypy says about PyTorch's own annotations is not what is tested here.
# mypy: allow-untyped-calls, allow-untyped-decorators, no-warn-return-any
# mypy: disable-error-code="arg-type, assignment, attr-defined, has-type, index, misc, operator, override"

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

from tests.kinds.kind import Kind, One, Two


class Recurrent(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, num_layers=2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(8, 4, batch_first=True)
        self.rnn = nn.RNN(4, 4)

    def forward(self, x: Tensor) -> Any:
        h, _ = self.lstm(x[None])
        h, _ = self.gru(h)
        _, last = self.rnn(h)
        return last


class RecurrentLastState(Kind):
    """Only the hidden state of the last layer is used, so everything below is too."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, num_layers=2)
        self.cell = nn.GRUCell(4, 4)

    def forward(self, x: Tensor) -> Any:
        _, (h, _) = self.lstm(x[:, None])
        return self.cell(x[:1], h[-1])


class PackedSequence(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 4, batch_first=True)
        self.dead = nn.GRU(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        packed = pack_padded_sequence(x[None].expand(2, -1, -1), torch.tensor([2, 1]), batch_first=True)
        y, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        self.dead(packed)  # <- discarded: dead
        return y


class WholeTransformer(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        x = x.reshape(1, 1, 8)
        return self.transformer(x, x)


class TransformerInEval(Kind):
    """In eval mode the encoder has a fast path, not taken while parameters require grad."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.encoder(x.reshape(1, 1, 8), src_key_padding_mask=torch.zeros(1, 1, dtype=torch.bool))


class DecoderWithoutMemory(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 1)

    def forward(self, x: Tensor) -> Any:
        return self.decoder(x.reshape(1, 1, 8), torch.zeros(1, 1, 8))


class Attention(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.attention(x, x, x, need_weights=False)[0]


class AttentionInEval(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.eval()


class AttentionWeightsOnly(Kind):
    """The attention map is used, the attended values are not: the value third of ``in_proj`` is, all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, kdim=4, vdim=3)

    def forward(self, x: Tensor) -> Any:
        _, weights = self.attention(x, x, x[:, :3])  # <- discarded: attention.v_proj_weight, attention.out_proj
        return weights


class ScaledDotProduct(One):
    def forward(self, x: Tensor) -> Any:
        h = self.live(x)[None]
        return F.scaled_dot_product_attention(h, h, h, is_causal=True)


class EmbeddingBag(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 4, mode="sum")
        self.weights = nn.Parameter(torch.ones(3))
        self.largest = nn.EmbeddingBag(10, 4, mode="max")

    @staticmethod
    def inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.tensor([1, 2, 4]), torch.tensor([0, 2])), {}

    def forward(self, ids: Tensor, offsets: Tensor) -> Any:
        return self.bag(ids, offsets, per_sample_weights=self.weights) + self.largest(ids, offsets)


class SparseEmbedding(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4, sparse=True)
        self.dead = nn.Embedding(10, 4, sparse=True)

    @staticmethod
    def inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.tensor([1, 2, 4]),), {}

    def forward(self, ids: Tensor) -> Any:
        return self.embed(ids) + self.dead(ids).detach()  # <- severed: dead


class NormalisedEmbedding(Kind):
    """``max_norm`` renormalises the weight in place, under no_grad, before it is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4, max_norm=1.0, padding_idx=0)

    @staticmethod
    def inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.tensor([1, 2, 4]),), {}

    def forward(self, ids: Tensor) -> Any:
        return self.embed(ids)


class Convolutions(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(2, 4, 3, padding=1), nn.BatchNorm1d(4), nn.PReLU(), nn.ConvTranspose1d(4, 4, 2, 2),
            nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True), nn.MaxPool1d(2), nn.Upsample(scale_factor=2),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Any:
        return self.layers(x[None])


class BatchNormInEval(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.norm(x)


class Norms(One):
    def __init__(self) -> None:
        super().__init__()
        self.rms = nn.RMSNorm(4)
        self.layer = nn.LayerNorm(4)
        self.bilinear = nn.Bilinear(4, 4, 4)

    def forward(self, x: Tensor) -> Any:
        return self.bilinear(self.rms(self.live(x)), self.layer(x))


class AdaptiveSoftmax(Kind):
    """No target falls into the rare classes, so their tail is computed only for the row count of zero."""

    def __init__(self) -> None:
        super().__init__()
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(4, 10, [2, 5])  # <- uncalled: softmax.tail

    def forward(self, x: Tensor) -> Any:
        return self.softmax(x, torch.tensor([0, 1])).loss


class Losses(One):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Any:
        y = self.live(x) / self.temperature
        each = F.cross_entropy(y * self.weight, torch.tensor([0, 3]), label_smoothing=0.1, reduction="none")
        return each + F.kl_div(y.log_softmax(-1), x.softmax(-1), reduction="batchmean")


class WeightNorm(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.old = nn.utils.weight_norm(nn.Linear(4, 4))
        self.new = parametrizations.weight_norm(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Any:
        return self.old(x) + self.new(x)


class SpectralNorm(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.old = nn.utils.spectral_norm(nn.Linear(4, 4))
        self.new = parametrizations.spectral_norm(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Any:
        return self.old(x) + self.new(x)


class _Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).mT


class Parametrized(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        parametrize.register_parametrization(self.linear, "weight", _Symmetric())
        self.orthogonal = parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley")

    def forward(self, x: Tensor) -> Any:
        return self.linear(x) + self.orthogonal(x)


class ParametrizedButUnused(Two):
    def __init__(self) -> None:
        super().__init__()
        parametrize.register_parametrization(self.dead, "weight", _Symmetric())

    def forward(self, x: Tensor) -> Any:
        return self.live(x) + self.dead(x).detach()  # <- severed: dead


class Tied(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Any:
        return self.head(x)  # the embedding itself is never called; its weight is used


class SharedModule(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.wrapper = nn.ModuleDict({"encoder": self.encoder, "extra": nn.Linear(4, 4)})  # <- uncalled: wrapper.extra

    def forward(self, x: Tensor) -> Any:
        return self.wrapper["encoder"](x)


class Copies(Kind):
    """Deep copies are put where the list is made."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(3)])  # <- uncalled: layers.2

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers[:2]:
            x = layer(x)
        return x


class Containers(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([torch.ones(4), torch.ones(4)])  # <- uncalled: scales.1
        self.shifts = nn.ParameterDict({"used": torch.zeros(4), "spare": torch.zeros(4)})  # <- uncalled: shifts.spare
        self.heads = nn.ModuleDict()
        for name in ("a", "b"):
            self.heads[name] = nn.Linear(4, 4)  # <- uncalled: heads.b

    def forward(self, x: Tensor) -> Any:
        return self.heads["a"](x * self.scales[0] + self.shifts["used"])


class Registered(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("used", nn.Parameter(torch.ones(4)))
        self.register_parameter("spare", nn.Parameter(torch.ones(4)))  # <- uncalled: spare
        self.register_parameter("absent", None)
        self.add_module("head", nn.Linear(4, 4))  # <- uncalled: head

    def forward(self, x: Tensor) -> Any:
        return x * self.used


class PartOfASequential(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))  # <- uncalled: layers.2

    def forward(self, x: Tensor) -> Any:
        return self.layers[:2](x)


class WeightAlone(Kind):
    """A layer that is never called, its weight used by hand: the bias is left over."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)  # <- uncalled: linear.bias

    def forward(self, x: Tensor) -> Any:
        return F.linear(x, self.linear.weight)


class ForwardDirectly(Two):
    def forward(self, x: Tensor) -> Any:
        self.dead.forward(x)  # <- discarded: dead
        return self.live.forward(x)


class WholeBlockDead(One):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(  # <- uncalled: block
            nn.Linear(4, 4),
            nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        )

    def forward(self, x: Tensor) -> Any:
        return self.live(x)


class Lazy(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.live = nn.LazyLinear(4)
        self.norm = nn.LazyBatchNorm1d()
        self.dead = nn.LazyLinear(4)

    def forward(self, x: Tensor) -> Any:
        return self.norm(self.live(x)) + self.dead(x).detach()  # <- severed: dead


class Counter(One):
    """A buffer counts the steps in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        self.steps += 1
        self.mean = self.mean * 0.9 + self.live(x).detach().mean(0) * 0.1
        return self.live(x) - self.mean + self.steps


class StatefulMemory(One):
    """What an earlier step left behind is no part of this one's graph."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        if self.memory is not None:
            y = y + self.memory
        self.memory = y.detach()
        return y


class TupleOutput(NamedTuple):
    used: Tensor
    spare: Tensor


class NamedTupleOutput(Two):
    never_from_outputs = ()

    def forward(self, x: Tensor) -> Any:
        return TupleOutput(self.live(x), self.dead(x))  # <- output-only: dead

    @staticmethod
    def loss(output: Any) -> Tensor:
        return output.used.mean()


@dataclass
class DataclassOutputs:
    used: Tensor
    spare: Tensor


class DataclassOutput(Two):
    never_from_outputs = ()

    def forward(self, x: Tensor) -> Any:
        return DataclassOutputs(self.live(x), self.dead(x))  # <- output-only: dead

    @staticmethod
    def loss(output: Any) -> Tensor:
        return output.used.mean()


class NestedOutput(Two):
    never_from_outputs = ()

    def forward(self, x: Tensor) -> Any:
        return {"a": [self.live(x), {"b": (self.dead(x),)}]}  # <- output-only: dead

    @staticmethod
    def loss(output: Any) -> Tensor:
        return output["a"][0].mean()


class Opaque:
    """An output that DDP can't look into."""

    def __init__(self, used: Tensor, spare: Tensor) -> None:
        self.used, self.spare = used, spare


class OpaqueOutput(Two):
    never_from_outputs = ("**",)

    def forward(self, x: Tensor) -> Any:
        return Opaque(self.live(x), self.dead(x))  # <- discarded: dead

    @staticmethod
    def loss(output: Any) -> Tensor:
        return output.used.mean()


class Registered2:
    def __init__(self, used: Tensor, spare: Tensor) -> None:
        self.used, self.spare = used, spare


pytree.register_pytree_node(Registered2, lambda o: ([o.used, o.spare], None), lambda v, _: Registered2(*v))


class PytreeOutput(Two):
    """DDP does not ask pytree for what a registered class holds."""

    never_from_outputs = ("**",)

    def forward(self, x: Tensor) -> Any:
        return pytree.tree_map(lambda t: t * 2, Registered2(self.live(x), self.dead(x)))  # <- discarded: dead

    @staticmethod
    def loss(output: Any) -> Tensor:
        return sum(t.mean() for t in pytree.tree_leaves(output)[:1])


class Tagged(torch.Tensor):
    """A tensor subclass with nothing of its own."""


class TensorSubclass(Two):
    def forward(self, x: Tensor) -> Any:
        tagged = x.as_subclass(Tagged)
        return self.live(tagged) + self.dead(tagged).detach()  # <- severed: dead


class TaggedParameter(nn.Parameter):
    pass


class ParameterSubclass(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.live = TaggedParameter(torch.ones(4))
        self.dead = TaggedParameter(torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        return x * self.live + self.dead.detach()  # <- severed: dead


class TensorWithFunction(torch.Tensor):
    """A tensor subclass that overrides torch functions."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class OverridingSubclass(One):
    def forward(self, x: Tensor) -> Any:
        return torch.tanh(self.live(x.as_subclass(TensorWithFunction)))


class Wrapped(torch.Tensor):
    """A wrapper subclass: the tensor is an attribute, ``__torch_dispatch__`` unwraps it."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        opened = pytree.tree_map_only(Wrapped, lambda t: t.inner, (args, kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, Wrapped, func(*opened[0], **opened[1]))


class WrapperSubclass(One):
    replay = "the wrapper is made by no torch call"

    def forward(self, x: Tensor) -> Any:
        return self.live(x) + Wrapped(x).mul(2).inner


class DataParallelOnCpu(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.DataParallel(nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Any:
        return self.block(x)


class FxModule(Kind):
    """A module that fx has traced is a module like any other."""

    def __init__(self) -> None:
        super().__init__()
        self.block = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    def forward(self, x: Tensor) -> Any:
        return self.block(x)


class Frozen(Two):
    """A frozen layer is not trainable, so it can't be unused."""

    def __init__(self) -> None:
        super().__init__()
        self.dead.requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        return self.dead(self.live(x))


class HalfPrecision(One):
    def forward(self, x: Tensor) -> Any:
        return self.live.to(torch.bfloat16)(x.to(torch.bfloat16))


class SumOfNothing(Two):
    """An empty batch still goes through the layer."""

    def forward(self, x: Tensor) -> Any:
        return self.live(x).sum() + self.dead(x[:0]).sum()


class TimesZero(Two):
    def forward(self, x: Tensor) -> Any:
        return self.live(x).sum() + 0 * self.dead(x).sum()
