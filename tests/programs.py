"""Random PyTorch modules, as Python source: what ``tests/test_programs.py`` puts to ddplint and to real backward runs.

A program is a small tree of frozen dataclasses, so that hypothesis shrinks it by dropping statements, and
``source`` prints it as a target file: ``build``, ``inputs``, ``variants`` and ``loss``, or ``step``. It works on
three tensors ``a``, ``b``, ``c`` of shape (rows, 4) and says nothing about which parameters get a gradient.

With ``watched=True`` every place where control flow forks on a value or a draw is printed as ``choose(site,
value, choices)``: the oracle then runs the branches that data alone does not reach. ddplint never sees that form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "c")

# ---------------------------------------------------------------------- the tree


@dataclass(frozen=True, slots=True)
class Layer:
    """``target = member(source)``. ``share`` n > 0 takes the n-th member that is there instead of a new one."""

    target: str
    source: str
    kind: str
    call: str = "plain"
    share: int = 0
    hooked: bool = False


@dataclass(frozen=True, slots=True)
class Weight:
    """A bare parameter of four numbers and how it meets ``source``."""

    target: str
    source: str
    use: str
    share: int = 0


@dataclass(frozen=True, slots=True)
class Apply:
    """Operations without parameters: a template of OPERATIONS or WRITES."""

    target: str
    source: str
    other: str
    name: str


@dataclass(frozen=True, slots=True)
class Pick:
    """One of two or three experts, chosen by a value or a draw."""

    target: str
    source: str
    by: str
    count: int = 2


@dataclass(frozen=True, slots=True)
class Tie:
    """The weight of one square member becomes another's; or a member gets a second name."""

    one: int
    other: int
    alias: bool = False


@dataclass(frozen=True, slots=True)
class Freeze:
    """A member stops requiring grad: all of it, or its first parameter."""

    member: int
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Kept:
    """What the forward hooks of this module's members kept is added to ``target``."""

    target: str


@dataclass(frozen=True, slots=True)
class Condition:
    """A key of CONDITIONS, about ``source``."""

    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class Branch:
    """``if condition: then else: otherwise``."""

    condition: Condition
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Leave:
    """An early return."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of few turns; ``kind`` is a key of LOOPS."""

    kind: str
    source: str
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Within:
    """``body`` under a context manager (CONTEXTS) or as a method of its own (METHODS)."""

    how: str
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """``target = member(source)``, the member a module with a forward of its own; ``call`` as for Layer."""

    target: str
    source: str
    body: tuple[Statement, ...]
    style: str = "attribute"
    call: str = "plain"


Statement = Layer | Weight | Apply | Pick | Tie | Freeze | Kept | Branch | Leave | Loop | Within | Block


@dataclass(frozen=True, slots=True)
class Program:
    """A whole target. ``outputs`` leave the forward as a ``form``; the loss is made of those in ``in_loss``."""

    body: tuple[Statement, ...]
    style: str = "attribute"
    outputs: tuple[str, ...] = ("a", "b", "c")
    in_loss: tuple[str, ...] = ("a",)
    form: str = "dict"
    loss: str = "sum"
    outside: str = "none"  # what of the model the loss uses beside the outputs
    stem: bool = True
    input_grad: bool = False
    variants: tuple[str, ...] = ()
    forwards: int = 0  # 0: inputs and loss; n: a step(model) of n forwards


# ---------------------------------------------------------------------- the words

MEMBERS = {
    "linear": "nn.Linear(4, 4)",
    "bare": "nn.Linear(4, 4, bias=False)",
    "sequential": "nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4))",
    "dropout": "nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4))",
    "inplace": "nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))",
    "norm": "nn.LayerNorm(4)",
    "batchnorm": "nn.BatchNorm1d(4)",
    "prelu": "nn.PReLU()",
    "parametrized": "nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))",
    "spectral": "nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))",
    "embedding": "nn.Embedding(4, 4)",
    "gru": "nn.GRUCell(4, 4)",
    "bilinear": "nn.Bilinear(4, 4, 4)",
    "attention": "nn.MultiheadAttention(4, 2)",
    "encoder": "nn.TransformerEncoderLayer(4, 2, 4, 0.0)",
}
SQUARE = frozenset({"linear", "bare"})  # members with one plain (4, 4) weight

CALLS = {
    "plain": "{d} = {call}",
    "tanh": "{d} = torch.tanh({call})",
    "residual": "{d} = {s} + {call}",
    "unused": "",
    "dropped": "{call}",
    "times_zero": "{d} = {s} + 0 * {call}",
    "no_grad": "with torch.no_grad():\n    {d} = {call}",
    "detached": "{d} = {s} + {call}.detach()",
    "checkpoint": "{d} = checkpoint({m}, {args}, use_reentrant=False)",
    "reentrant": "{d} = checkpoint({m}, {args}, use_reentrant=True)",
    "functional_detached": (
        "{d} = torch.func.functional_call({m}, {{n: p.detach() for n, p in {m}.named_parameters()}}, ({args},))"
    ),
    "functional_scaled": (
        "{d} = torch.func.functional_call({m}, {{n: p * 2 for n, p in {m}.named_parameters()}}, ({args},))"
    ),
    "weights": "{d} = {s} + sum(p.sum() for p in {m}.parameters())",
    "first_weight": "{d} = {s} + next({m}.parameters()).sum()",
    "energy": (
        "q = {s}.detach().requires_grad_()\n"
        "{d} = {s} + torch.autograd.grad(({qcall}).sum(), q, create_graph=True, materialize_grads=True)[0]"
    ),
    "energy_square": (
        "q = {s}.detach().requires_grad_()\n"
        "{d} = {s} + torch.autograd.grad(({qcall}).square().sum(), q, create_graph=True, materialize_grads=True)[0]"
    ),
    "energy_no_graph": (
        "q = {s}.detach().requires_grad_()\n"
        "{d} = {s} + torch.autograd.grad(({qcall}).square().sum(), q, materialize_grads=True)[0]"
    ),
}

USES = {
    "multiply": "{d} = {s} * {p}",
    "add": "{d} = {s} + {p}",
    "zero": "{d} = {s} + 0 * {p}.sum()",
    "where": "{d} = torch.where({s} > 0, {s}, {p})",
    "data": "{d} = {s} + {p}.data",
    "detach": "{d} = {s} * {p}.detach()",
    "clone_write": "w = {p}.clone()\nw[:2] = {s}.sum()\n{d} = {s} + w",
    "expand_copy": "{d} = {p}.expand_as({s}).clone()",
    "mask_write": "{d} = {s}.clone()\n{d}[{d} > 0.5] = {p}.sum()",
    "row_write": "{d} = {s}.clone()\n{d}[:, 0] = {p}[0]",
    "assign": "{d} = {s}.clone()\n{d}[:] = {p}",
    "no_grad_update": "with torch.no_grad():\n    {p}.mul_(0.9)",
    "data_update": "{p}.data = {p}.data * 0.9",
    "index": "{d} = {s} + {p}[{s}.argmax(1)].unsqueeze(1)",
    "custom_none": "{d} = Gate.apply({s}, {p}.expand_as({s}))",
    "custom_first": "{d} = First.apply({p}.expand_as({s}), {s})",
    "custom_both": "{d} = Both.apply({s}, {p}.expand_as({s}))",
    "gradient": ("{d} = {s} + torch.autograd.grad(({s} * {p}).sum(), {p}, create_graph=True, materialize_grads=True)[0]"),
    "gradient_square": "{d} = {s} + torch.autograd.grad({p}.square().sum(), {p}, create_graph=True)[0]",
    "unused": "",
    "float": "{d} = {s} * float({p}.sum())",
    "softmax": "{d} = {s} * torch.softmax({p}, 0)[1]",
    "unbind": "{d} = {s} * {p}.unbind(0)[2]",
    "int": "{d} = {s} + {p}.int()",
    "max": "{d} = torch.maximum({s}, {p})",
    "clamp": "{d} = {s}.clamp(max={p}.sum().item())",
    "numpy": "{d} = {s} + torch.from_numpy({p}.detach().cpu().numpy())",
}

OPERATIONS = {
    "add": "{d} = {s} + {o}",
    "multiply": "{d} = {s} * {o}",
    "same": "{d} = {s}",
    "detach": "{d} = {s}.detach()",
    "data": "{d} = {s}.data",
    "tanh": "{d} = torch.tanh({s})",
    "one_hot": "{d} = F.one_hot({s}.argmax(1), 4).float()",
    "integers": "{d} = {s}.int().float()",
    "greater": "{d} = ({s} > {o}).float()",
    "where": "{d} = torch.where({s} > 0, {s}, {o})",
    "where_condition": "{d} = torch.where({s} > 0, {o}, {o} * 2)",
    "first_half": "{d} = torch.cat([{s}, {o}], 1)[:, :4]",
    "second_half": "{d} = torch.cat([{s}, {o}], 1)[:, 4:]",
    "halves": "{d} = torch.cat([{s}, {o}], 1).chunk(2, 1)[1]",
    "split": "h, {d} = torch.cat([{s}, {o}], 1).split(4, 1)",
    "stack": "{d} = torch.stack([{s}, {o}]).mean(0)",
    "stacked_first": "{d} = torch.stack([{s}, {o}])[0]",
    "unbind": "{d} = torch.stack({s}.unbind(1), 1)",
    "rows": "{d} = torch.stack([row for row in {s}])",
    "gather": "{d} = {s}.gather(1, {o}.argsort(1))",
    "max": "{d} = {s}.max(1, keepdim=True).values.expand(-1, 4)",
    "indices": "{d} = {s}.topk(4, 1).indices.float()",
    "sort": "{d} = {s}.sort(1)[0]",
    "round": "{d} = {s}.round()",
    "sign": "{d} = torch.sign({s})",
    "softmax": "{d} = {s}.softmax(1)",
    "zeros": "{d} = torch.zeros_like({s})",
    "full_item": "{d} = torch.full_like({s}, {s}.sum().item())",
    "through_numpy": "{d} = torch.from_numpy({s}.detach().cpu().numpy()) + {o}",
    "through_list": "{d} = {o} + torch.tensor({s}.sum(0).tolist())",
    "straight_through": "{d} = {s} + ({o} - {s}).detach()",
    "view": "{d} = {s}.reshape(-1).view(-1, 4)",
    "transposed": "{d} = {s}.mT.contiguous().mT",
    "double": "{d} = {s}.double().float()",
    "fft": "{d} = torch.fft.fft({s}).real",
    "complex": "{d} = torch.view_as_real(torch.view_as_complex({s}.reshape(-1, 2, 2).contiguous())).reshape(-1, 4)",
    "einsum": "{d} = torch.einsum('ij,kj,kl->il', {s}, {o}, {o})",
    "attention": "{d} = F.scaled_dot_product_attention({s}[None], {o}[None], {o}[None])[0]",
    "dropout": "{d} = F.dropout({s}, 0.5)",
    "noise": "{d} = {s} + torch.randn_like({s})",
    "shuffle": "{d} = {s}[torch.randperm({s}.size(0))]",
    "gumbel": "{d} = F.gumbel_softmax({s}, hard=True)",
    "vmap": "{d} = torch.func.vmap(torch.sin)({s})",
    "func_grad": "{d} = torch.func.grad(lambda v: v.tanh().sum())({s})",
    "leaf": "{d} = {s}.detach().requires_grad_()",
    "clamp": "{d} = {s}.clamp(-1, 1)",
    "masked_fill": "{d} = {s}.masked_fill({o} > 0, 0.0)",
    "masked_select": "{d} = {s} + {o}.masked_select({o} > 0).sum()",
    "mask_index": "{d} = {s} + {o}[{o} > 0].sum()",
    "nonzero": "{d} = {s} + {o}[({o} > 0).nonzero(as_tuple=True)].sum()",
    "unique": "{d} = {s} + {o}.round().unique().numel()",
    "bincount": "{d} = {s} + torch.bincount({o}.argmax(1), minlength=4)",
    "gate": "{d} = Gate.apply({s}, {o})",
    "first": "{d} = First.apply({s}, {o})",
    "both": "{d} = Both.apply({s}, {o})",
    "round_through": "{d} = Round.apply({s})",
    "times_zero": "{d} = {s} * 0 + {o}",
    "tensor_hook": "{d} = {s}.clone()\nif {d}.requires_grad:\n    {d}.register_hook(lambda g: g * 2)",
    "penalty": (
        "if {s}.requires_grad and {o}.requires_grad:\n"
        "    g, = torch.autograd.grad({s}.square().sum(), {o}, create_graph=True, allow_unused=True)\n"
        "    if g is not None:\n"
        "        {d} = {s} + g"
    ),
}

WRITES = {
    "add_": "{d} = {d}.clone()\n{d} += {s}",
    "raw_add_": "{d}.add_({s})",
    "raw_write": "{d}[:, 0] = {s}[:, 1]",
    "set_columns": "{d} = {d}.clone()\n{d}[:, :2] = {s}[:, :2]",
    "set_all": "{d} = {d}.clone()\n{d}[:] = {s}",
    "set_number": "{d} = {d}.clone()\n{d}[:, 1] = 0.5",
    "zero_": "{d} = {d}.clone()\n{d}.zero_()",
    "fill": "{d} = torch.zeros_like({d})\n{d}[:, 0] = {s}[:, 0]",
    "copy_": "h = torch.empty_like({s})\nh.copy_({s})\n{d} = h",
    "through_view": "{d} = {d}.clone()\nv = {d}[:, 1:]\nv.mul_({s}[:, 1:])",
    "through_views": "{d} = {d}.clone()\nv = {d}.view(-1)[2:]\nv.add_({s}.reshape(-1)[2:])",
    "view_taken_first": "h = {d} * 1\nv = h[:, :2]\nh.add_({s})\n{d} = torch.cat([v, v], 1)",
    "view_written_first": "h = torch.zeros_like({d})\nv = h[:, :2]\nv.copy_({s}[:, :2])\n{d} = h + {d}",
    "diagonal": "{d} = {d}.clone()\n{d}.diagonal().copy_({s}.diagonal())",
    "unbind_write": "{d} = {d}.clone()\n{d}.select(1, 2).copy_({s}.select(1, 0))",
    "index_put": "{d} = {d}.index_put((torch.arange({d}.size(0)),), {s} * 1, accumulate=True)",
    "index_put_": "{d} = {d}.clone()\n{d}.index_put_((torch.arange({d}.size(0)),), {s} * 1)",
    "index_write": "{d} = {d}.clone()\n{d}[torch.arange({d}.size(0))] = {s} * 1",
    "index_add_": "{d} = {d}.clone()\n{d}.index_add_(0, torch.arange({d}.size(0)), {s} * 1)",
    "scatter_": "{d} = {d}.clone()\n{d}.scatter_(1, {s}.argsort(1), {s} * 1)",
    "masked_fill_": "{d} = {d}.clone()\n{d}.masked_fill_({s} > 0, 1.0)",
    "mask_write": "{d} = {d}.clone()\n{d}[{s} > 0] = 0.25",
    "mask_copy": "{d} = {d}.clone()\n{d}[{s} > 0] = {s}[{s} > 0]",
    "masked_scatter": "{d} = {d}.masked_scatter({s} > 0, {s})",
    "hidden_write": "with torch.no_grad():\n    {d}.add_({s})",
    "data_write": "{d}.data.add_({s}.data)",
    "detached_write": "{d} = {d}.clone()\n{d}.detach().mul_({s}.detach())",
    "data_assign": "{d} = {d}.clone()\n{d}.data = {s}.data",
    "relu_": "{d} = F.relu({s} + 0, inplace=True)",
    "out": "h = torch.empty_like({s}.detach())\ntorch.add({s}.detach(), {o}.detach(), out=h)\n{d} = {s} + h",
    "set_grad": "torch.set_grad_enabled(False)\nh = {s} * 2\ntorch.set_grad_enabled(True)\n{d} = {o} + h",
    "foreach": "{d} = torch._foreach_add([{s}, {o}], 1.0)[0]",
    "detach_": "{d} = {s} * 1\n{d}.detach_()",
    "requires": "{d} = {s}.detach()\n{d}.requires_grad_()\n{d} = {d} * {o}",
    "features": "kept = []\nkept.append({s})\nkept.append({o})\n{d} = kept[-1]",
    "swap": "{d}, {s} = {s}, {d}",
    "nested": "kept = {{'x': [{s}, ({o}, {d})]}}\n{d} = kept['x'][1][0] * 2",
}

# kind -> (text, what decides: "value", "draw" of torch's, "python" draw, "static")
CONDITIONS = {
    "mode": ("mode == 1", "static"),
    "size": ("{s}.size(0) > 3", "static"),
    "empty": ("{s}.size(0) == 0", "static"),
    "training": ("self.training", "static"),
    "grad": ("{s}.requires_grad", "static"),
    "count": ("self.count % 2 == 1", "static"),
    "later": ("self.count > 1", "static"),
    "sum": ("{s}.sum() > 0", "value"),
    "item": ("{s}.mean().item() > 0", "value"),
    "any": ("bool(({s} > 0.5).any())", "value"),
    "all": ("({s} > -0.5).all().item()", "value"),
    "int": ("int({s}.sum().abs().clamp(max=3)) > 1", "value"),
    "float": ("float({s}.sum()) > 0.0", "value"),
    "element": ("{s}[0, 0] > 0", "value"),
    "list": ("sum({s}.sum(1).tolist()) > 0", "value"),
    "numpy": ("{s}.detach().sum().numpy() > 0", "value"),
    "few": ("({s} > 0).sum() > 5", "value"),
    "nonzero": ("({s} > 1.0).nonzero().numel() > 0", "shape"),
    "selected": ("len({s}[{s} > 0]) > 5", "shape"),
    "nan": ("torch.isnan({s}).any()", "value"),
    "not": ("not {s}.sum() > 0", "value"),
    "both": ("{s}.sum() > 0 and {s}.max() > 1", "value"),
    "buffer": ("int(self.steps) > 1", "state"),
    "rand": ("torch.rand(1) < 0.5", "draw"),
    "rand_item": ("torch.rand(()).item() < 0.5", "draw"),
    "bernoulli": ("torch.bernoulli(torch.tensor(0.5)) > 0", "draw"),
    "randint": ("torch.randint(0, 2, (1,)).item()", "draw"),
    "uniform_": ("torch.empty(2).uniform_()[1] > 0.5", "draw"),
    "random": ("random.random() < 0.5", "python"),
    "choice": ("random.choice([True, False])", "python"),
    "randrange": ("random.randint(0, 1) == 1", "python"),
    "np_rand": ("np.random.rand() < 0.5", "python"),
    "np_random": ("np.random.random() > 0.5", "python"),
    "np_randint": ("np.random.randint(2) == 0", "python"),
    "np_uniform": ("np.random.uniform(-1, 1) > 0", "python"),
    "np_choice": ("np.random.choice([0, 1]) == 1", "python"),
    "np_normal": ("np.random.normal() > 0", "python"),
}

# kind -> (the loop's head, what is chosen there, the choices, what decides)
LOOPS = {
    "twice": ("for _ in range(2):", "", 0, "static"),
    "rows": ("for _ in {s}:", "", 0, "static"),
    "int": ("for _ in range({n}):", "int({s}.sum().abs().clamp(max=3))", 4, "value"),
    "item": ("for _ in range({n}):", "{s}.argmax(1).sum().clamp(max=2).item()", 3, "value"),
    "randint": ("for _ in range({n}):", "torch.randint(0, 3, (1,)).item()", 3, "draw"),
    "python": ("for _ in range({n}):", "random.randint(0, 2)", 3, "python"),
    "normal": ("for _ in range({n}):", "min(3, max(0, int(np.random.normal(1.5, 1.0))))", 4, "python"),
    "flags": ("for flag in ({s}.sum(0) > 0).tolist():", "flag", 2, "value"),
    "values": ("for value in {s}.sum(1).tolist():", "value > 0", 2, "value"),
    "while": ("turns = 0\nwhile turns < 2 and {n}:", "{s}.sum() > turns", 2, "value"),
}

PICKS = {
    "argmax": ("int({s}.sum(0).argmax()) % {k}", "value"),
    "item": ("{s}.sum(0)[:{k}].argmax().item()", "value"),
    "randint": ("torch.randint(0, {k}, (1,)).item()", "draw"),
    "random": ("random.randrange({k})", "python"),
    "numpy": ("np.random.randint({k})", "python"),
    "choice": ("random.choice(range({k}))", "python"),
    "mode": ("mode % {k}", "static"),
    "sparse": ("", "shape"),  # each expert gets the rows that a router sends it, if any
}

CONTEXTS = {
    "no_grad": "with torch.no_grad():",
    "set_grad_enabled": "with torch.set_grad_enabled(False):",
    "training": "with torch.set_grad_enabled(self.training):",
    "enable_grad": "with torch.enable_grad():",
    "inference_mode": "with torch.inference_mode():",
    "autocast": "with torch.autocast('cpu', dtype=torch.bfloat16):",
    "saved": "with torch.autograd.graph.save_on_cpu():",
}
METHODS = {
    "method": ("", "{m}({args})"),
    "no_grad_method": ("@torch.no_grad()", "{m}({args})"),
    "enable_grad_method": ("@torch.enable_grad()", "{m}({args})"),
    "checkpoint": ("", "checkpoint({m}, {args}, use_reentrant=False)"),
    "reentrant": ("", "checkpoint({m}, {args}, use_reentrant=True)"),
    "closure": ("", "(lambda *values: {m}(*values))({args})"),
}
FORMS = ("tensor", "tuple", "list", "dict", "nested", "dataclass", "opaque", "namedtuple")
LOSSES = {
    "sum": "{t}.sum()",
    "mean": "{t}.mean()",
    "square": "{t}.square().mean()",
    "entropy": "F.cross_entropy({t}, {t}.detach().argmax(1))",
    "mse": "F.mse_loss({t}, torch.zeros_like({t}))",
    "first": "{t}[:, 0].sum()",
}
VARIANTS = {
    "other": "((torch.randn(3, 4),), {})",
    "negative": "((-torch.rand(3, 4) * 2,), {})",
    "positive": "((torch.rand(3, 4) * 2,), {})",
    "zeros": "((torch.zeros(3, 4),), {})",
    "large": "((torch.randn(3, 4) * 8,), {})",
    "empty": "((torch.randn(0, 4),), {})",
    "longer": "((torch.randn(5, 4),), {})",
    "mode": "((torch.randn(3, 4),), {'mode': 1})",
    "mode_two": "((torch.randn(3, 4),), {'mode': 2})",
}
STYLES = ("attribute", "list", "dict", "sequence")

_HEAD = """import random
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
"""

_HELPERS = {
    "Gate": """
class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gate):
        ctx.save_for_backward(gate)
        return x * gate

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None
""",
    "First": """
class First(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, grad):
        return None, grad
""",
    "Both": """
class Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y, grad * x
""",
    "Round": """
class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad
""",
}

# ---------------------------------------------------------------------- printing


@dataclass(slots=True)
class _Member:
    expression: str
    kind: str  # a key of MEMBERS, or "block"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" if line else line for line in (lines or ["pass"])]


@dataclass(slots=True)
class _Class:
    """One module class being written."""

    name: str
    style: str
    init: list[str] = field(default_factory=list)
    start: list[str] = field(default_factory=list)  # first lines of its forward
    methods: list[str] = field(default_factory=list)
    members: list[_Member] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    parts: int = 0

    def member(self, kind: str, constructor: str) -> _Member:
        number = len(self.members)
        name = f"m{number}"
        if self.style == "attribute":
            self.init.append(f"self.{name} = {constructor}")
            expression = f"self.{name}"
        elif self.style == "dict":
            self.once("self.named = nn.ModuleDict()")
            self.init.append(f"self.named['{name}'] = {constructor}")
            expression = f"self.named['{name}']"
        else:
            kind_of_list = "nn.ModuleList()" if self.style == "list" else "nn.Sequential()"
            self.once(f"self.layers = {kind_of_list}")
            self.init.append(f"self.layers.append({constructor})")
            expression = f"self.layers[{number}]"
        self.members.append(_Member(expression, kind))
        return self.members[-1]

    def parameter(self) -> str:
        number = len(self.parameters)
        made = "nn.Parameter(torch.rand(4) + 0.5)"
        if self.style in ("list", "sequence"):
            self.once("self.weights = nn.ParameterList()")
            self.init.append(f"self.weights.append({made})")
            expression = f"self.weights[{number}]"
        elif self.style == "dict":
            self.once("self.weights = nn.ParameterDict()")
            self.init.append(f"self.weights['p{number}'] = {made}")
            expression = f"self.weights['p{number}']"
        else:
            self.init.append(f"self.p{number} = {made}")
            expression = f"self.p{number}"
        self.parameters.append(expression)
        return expression

    def once(self, line: str, start: str = "") -> None:
        if line not in self.init:
            self.init.append(line)
            if start:
                self.start.append(start)

    def lines(self, forward: Sequence[str]) -> list[str]:
        body = ["def __init__(self):", *_indented(["super().__init__()", *self.init]), "", *forward, *self.methods]
        return ["", f"class {self.name}(nn.Module):", *_indented(body)]


class _Printer:
    def __init__(self, watched: bool) -> None:
        self.watched = watched
        self.sites = 0
        self.classes: list[str] = []
        self.blocks = 0
        self.whiles = 0

    def choose(self, text: str, choices: int, decided: str) -> str:
        """A value where control flow forks. What inputs, steps or shapes decide is no fork that can be forced."""
        if decided == "static":
            return text
        site, self.sites = self.sites, self.sites + 1
        return f"choose({site}, {text}, {choices})" if self.watched else text

    def condition(self, condition: Condition, owner: _Class, again: bool) -> str:
        """``again``: the code runs a second time in backward, where only torch's draws are repeated."""
        text, decided = CONDITIONS[condition.kind]
        if again and (decided in ("python", "state") or condition.kind in ("count", "later")):
            text, decided = CONDITIONS["rand"]
        if "self.count" in text:
            owner.once("self.count = 0", "self.count += 1")
        if "self.steps" in text:
            owner.once("self.register_buffer('steps', torch.zeros(()))", "self.steps += 1")
        return self.choose(text.format(s=condition.source), 2, decided)

    def body(self, body: Sequence[Statement], owner: _Class, leave: str, again: bool) -> list[str]:
        lines: list[str] = []
        for statement in body:
            lines += self.statement(statement, owner, leave, again)
        return lines

    def statement(self, one: Statement, owner: _Class, leave: str, again: bool) -> list[str]:
        if isinstance(one, Layer):
            return self.layer(one, owner)
        if isinstance(one, Weight):
            known = owner.parameters
            parameter = known[(one.share - 1) % len(known)] if one.share and known else owner.parameter()
            return USES[one.use].format(d=one.target, s=one.source, p=parameter).splitlines()
        if isinstance(one, Apply):
            template = OPERATIONS.get(one.name) or WRITES[one.name]
            return template.format(d=one.target, s=one.source, o=one.other).splitlines()
        if isinstance(one, Pick):
            return self.pick(one, owner, again)
        if isinstance(one, Tie):
            return self.tie(one, owner)
        if isinstance(one, Freeze):
            if owner.members:
                member = owner.members[one.member % len(owner.members)].expression
                whole = f"{member}.requires_grad_(False)"
                part = f"for p in list({member}.parameters())[:1]: p.requires_grad_(False)"
                owner.init.append(whole if one.whole else part)
            return []
        if isinstance(one, Kept):
            if "self.kept = []" not in owner.init:
                return []
            return ["for kept in self.kept:", f"    {one.target} = {one.target} + kept"]
        if isinstance(one, Branch):
            lines = [f"if {self.condition(one.condition, owner, again)}:"]
            lines += _indented(self.body(one.then, owner, leave, again))
            if one.otherwise:
                lines += ["else:", *_indented(self.body(one.otherwise, owner, leave, again))]
            return lines
        if isinstance(one, Leave):
            return [f"if {self.condition(one.condition, owner, again)}:", f"    return {leave}"]
        if isinstance(one, Loop):
            return self.loop(one, owner, leave, again)
        if isinstance(one, Within):
            return self.within(one, owner, leave, again)
        return self.block(one, owner, again)

    def layer(self, one: Layer, owner: _Class) -> list[str]:
        if one.share and owner.members:
            member = owner.members[(one.share - 1) % len(owner.members)]
        else:
            member = owner.member(one.kind, MEMBERS[one.kind])
        if one.hooked:
            owner.once("self.kept = []", "self.kept = []")
            owner.init.append(f"{member.expression}.register_forward_hook(self.keep)")
            keep = ["", "def keep(self, module, args, output):"]
            keep += ["    self.kept.append(output[0] if isinstance(output, tuple) else output)"]
            if keep[1] not in owner.methods:
                owner.methods += keep
        return self.called(one.call, member, one.target, one.source)

    @staticmethod
    def called(call: str, member: _Member, target: str, source: str) -> list[str]:
        arguments = {
            "embedding": "{s}.argmax(1)",
            "gru": "{s}, b",
            "bilinear": "{s}, b",
            "attention": "{s}, c, c",
            "block": "{s}, mode",
        }.get(member.kind, "{s}")
        after = "[0]" if member.kind == "attention" else ""
        args, m = arguments.format(s=source), member.expression
        text = CALLS[call].format(
            d=target, s=source, m=m, args=args, call=f"{m}({args}){after}", qcall=f"{m}({arguments.format(s='q')}){after}"
        )
        if after and ("checkpoint" in call or "reentrant" in call or "functional" in call):
            text += after
        return text.splitlines()

    def pick(self, one: Pick, owner: _Class, again: bool) -> list[str]:
        number = owner.parts
        owner.parts += 1
        experts = f"self.experts{number}"
        owner.init.append(f"{experts} = nn.ModuleList(nn.Linear(4, 4) for _ in range({one.count}))")
        text, decided = PICKS[one.by]
        if again and decided == "python":
            text, decided = PICKS["randint"]
        if one.by == "sparse":
            owner.init.append(f"self.router{number} = nn.Linear(4, {one.count})")
            mask = self.choose("route == number", 2, "shape")
            return [
                f"route = self.router{number}({one.source}).argmax(1)",
                f"h = torch.zeros_like({one.source})",
                f"for number, expert in enumerate({experts}):",
                f"    rows = ({mask}).nonzero().flatten()",
                "    if rows.numel() > 0:",
                f"        h = h.index_add(0, rows, expert({one.source}[rows]))",
                f"{one.target} = {one.source} + h",
            ]
        index = self.choose(text.format(s=one.source, k=one.count), one.count, decided)
        return [f"{one.target} = {experts}[{index}]({one.source})"]

    def tie(self, one: Tie, owner: _Class) -> list[str]:
        if one.alias:
            if owner.members:
                owner.init.append(f"self.alias{owner.parts} = {owner.members[one.one % len(owner.members)].expression}")
                owner.parts += 1
            return []
        square = [m.expression for m in owner.members if m.kind in SQUARE]
        if square:
            this, that = square[one.one % len(square)], square[one.other % len(square)]
            if this != that:
                owner.init.append(f"{this}.weight = {that}.weight")
        return []

    def loop(self, one: Loop, owner: _Class, leave: str, again: bool) -> list[str]:
        head, number, choices, decided = LOOPS[one.kind]
        if again and decided == "python":
            head, number, choices, decided = LOOPS["randint"]
        chosen = self.choose(number.format(s=one.source), choices, decided)
        body = self.body(one.body, owner, leave, again)
        lines = head.format(s=one.source, n=chosen).splitlines()
        if one.kind == "while":  # a name of its own: a loop within it counts too
            self.whiles += 1
            lines = [line.replace("turns", f"turns{self.whiles}") for line in lines]
            body = [f"turns{self.whiles} += 1", *body]
        if number in ("flag", "value > 0"):
            body = [f"if {chosen}:", *_indented(body)]
        return [*lines, *_indented(body)]

    def within(self, one: Within, owner: _Class, leave: str, again: bool) -> list[str]:
        if one.how in CONTEXTS:
            return [CONTEXTS[one.how], *_indented(self.body(one.body, owner, leave, again))]
        decorator, call = METHODS[one.how]
        name = f"part{owner.parts}"
        owner.parts += 1
        again = again or one.how in ("checkpoint", "reentrant")
        lines = self.body(one.body, owner, "a, b, c", again)
        owner.methods += ["", *([decorator] if decorator else []), f"def {name}(self, x, a, b, c, mode):"]
        owner.methods += _indented([*lines, "return a, b, c"])
        return [f"a, b, c = {call.format(m=f'self.{name}', args='x, a, b, c, mode')}"]

    def block(self, one: Block, owner: _Class, again: bool) -> list[str]:
        self.blocks += 1
        made = _Class(f"Block{self.blocks}", one.style)
        again = again or one.call in ("checkpoint", "reentrant")
        body = self.body(one.body, made, "a", again)
        forward = ["def forward(self, x, mode=0):"]
        forward += _indented([*made.start, "a, b, c = x, x.clone(), x * 2", *body, "return a"])
        self.classes += made.lines(forward)
        member = owner.member("block", f"{made.name}()")
        return self.called(one.call, member, one.target, one.source)


def source(program: Program, *, watched: bool = False) -> str:
    """``program`` as the text of a target file (``watched``: as the oracle runs it, with ``choose`` to be given)."""
    printer = _Printer(watched)
    model = _Class("Model", program.style)
    if program.stem:
        model.init.append("self.stem = nn.Linear(4, 4)")
    output, reads, outside, helper = _output(program, model)
    lines = printer.body(program.body, model, output, again=False)
    first = "self.stem(x)" if program.stem else "x"
    forward = ["def forward(self, x, mode=0):"]
    forward += _indented([*model.start, f"a, b, c = {first}, x.clone(), x * 2", *lines, f"return {output}"])
    classes = [*printer.classes, *model.lines(forward)]
    terms = [LOSSES[program.loss].format(t=reads[name]) for name in program.in_loss if name in reads]
    terms += [outside] if outside else []
    total = " + ".join(terms) or "torch.zeros(())"
    grad = ".requires_grad_()" if program.input_grad else ""
    tail = ["", "def build():", "    return Model()"]
    if program.forwards:
        tail += ["", "def step(model):", "    total = 0.0", f"    for _ in range({program.forwards}):"]
        tail += [f"        output = model(torch.randn(3, 4){grad})", f"        total = total + {total}", "    return total"]
    else:
        tail += ["", "def inputs():", f"    return (torch.randn(3, 4){grad},), {{}}"]
        if program.variants:
            made = ", ".join(f"lambda: {VARIANTS[name]}" for name in program.variants)
            tail += ["", "def variants():", f"    return [{made}]"]
        tail += ["", "def loss(output):", f"    return {total}"]
    text = "\n".join([*helper, *classes, *tail])
    helpers = "".join(code for name, code in _HELPERS.items() if f"{name}.apply" in text)
    return f"{_HEAD}{helpers}{text}\n"


_OUTSIDE = {  # what leaves forward beside the outputs, and the loss term that is made of it
    "none": ("", ""),
    "parameter": ("self.temperature", "{e}.square()"),
    "module": ("self.head", "{e}(torch.ones(1, 4)).sum()"),
    "penalty": ("list(self.head.parameters())", "sum(p.square().sum() for p in {e})"),
    "model": ("self", "{e}.temperature * 2"),
}


def _output(program: Program, model: _Class) -> tuple[str, dict[str, str], str, list[str]]:
    """The forward's return expression, how the loss reads each output, its further term, and helper classes."""
    extra, term = _OUTSIDE[program.outside]
    form = program.form if not extra or program.form != "tensor" else "tuple"
    outputs = program.outputs[:1] if form == "tensor" else program.outputs
    names = [*outputs, *(["extra"] if extra else [])]
    values = [*outputs, *([extra] if extra else [])]
    if extra:
        model.init += ["self.temperature = nn.Parameter(torch.ones(()))", "self.head = nn.Linear(4, 2)"]
    pairs = list(zip(names, values, strict=True))
    helper: list[str] = []
    if form == "tensor":
        expression, reads = values[0], dict.fromkeys(names, "output")
    elif form in ("tuple", "list"):
        listed = ", ".join(values)
        expression = f"[{listed}]" if form == "list" else f"({listed},)"
        reads = {name: f"output[{position}]" for position, name in enumerate(names)}
    elif form == "dict":
        expression = "{" + ", ".join(f"'{name}': {value}" for name, value in pairs) + "}"
        reads = {name: f"output['{name}']" for name in names}
    elif form == "nested":
        expression = "{'all': [" + ", ".join(f"({value}, 1)" for value in values) + "]}"
        reads = {name: f"output['all'][{position}][0]" for position, name in enumerate(names)}
    else:
        expression = "Output(" + ", ".join(f"{name}={value}" for name, value in pairs) + ")"
        reads = {name: f"output.{name}" for name in names}
        if form == "dataclass":
            helper = ["", "@dataclass", "class Output:", *(f"    {name}: object" for name in names)]
        elif form == "namedtuple":
            helper = ["", f"Output = namedtuple('Output', {names!r})"]
        else:
            helper = ["", "class Output:", "    def __init__(self, **values):", "        self.__dict__.update(values)"]
    return expression, reads, term.format(e=reads.get("extra", "")), helper


# ---------------------------------------------------------------------- drawing


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be in a program."""

    forks: bool = True  # control flow on values and draws
    deep: int = 2
    statements: int = 8


def _names() -> st.SearchStrategy[str]:
    return st.sampled_from(NAMES)


def _conditions(limits: Limits) -> st.SearchStrategy[Condition]:
    kinds = [kind for kind, (_, decided) in CONDITIONS.items() if limits.forks or decided == "static"]
    return st.builds(Condition, st.sampled_from(kinds), _names())


def _keys(table: dict[str, tuple[str, str]], limits: Limits) -> list[str]:
    return [key for key, (_, decided) in table.items() if limits.forks or decided == "static"]


def _statements(limits: Limits, deep: int) -> st.SearchStrategy[tuple[Statement, ...]]:
    names = _names()
    calls = st.one_of(st.just("plain"), st.sampled_from(sorted(CALLS)))
    shares = st.integers(0, 3)
    layers = st.builds(
        Layer, names, names, st.one_of(st.just("linear"), st.sampled_from(sorted(MEMBERS))), calls, shares, st.booleans()
    )
    leaves: list[st.SearchStrategy[Statement]] = [
        layers,
        layers,
        st.builds(Weight, names, names, st.sampled_from(sorted(USES)), shares),
        st.builds(Apply, names, names, names, st.sampled_from(sorted(OPERATIONS))),
        st.builds(Apply, names, names, names, st.sampled_from(sorted(WRITES))),
        st.builds(Pick, names, names, st.sampled_from(_keys(PICKS, limits)), st.integers(2, 3)),
        st.one_of(
            st.builds(Tie, st.integers(0, 3), st.integers(0, 3), st.booleans()),
            st.builds(Freeze, st.integers(0, 3), st.booleans()),
            st.builds(Kept, names),
        ),
    ]
    if deep > 0:
        inner = st.deferred(lambda: _statements(limits, deep - 1))
        loops = [kind for kind, row in LOOPS.items() if limits.forks or row[3] == "static"]
        leaves += [
            st.builds(Branch, _conditions(limits), inner, inner),
            st.one_of(st.builds(Loop, st.sampled_from(loops), names, inner), st.builds(Leave, _conditions(limits))),
            st.builds(Within, st.sampled_from(sorted({*CONTEXTS, *METHODS})), inner),
            st.builds(Block, names, names, inner, st.sampled_from(STYLES), calls.filter(_calls_a_block)),
        ]
    most = limits.statements if deep == limits.deep else 4
    return st.lists(st.one_of(leaves), max_size=most).map(tuple)


def _calls_a_block(call: str) -> bool:
    return call not in ("functional_detached", "functional_scaled")


def programs(limits: Limits = Limits()) -> st.SearchStrategy[Program]:
    """Programs within ``limits``; without ``forks`` control flow depends on inputs, shapes and steps alone."""
    several = st.lists(_names(), min_size=1, max_size=3, unique=True).map(tuple)
    usually = st.sampled_from([True, True, True, False])
    return st.builds(
        Program,
        body=_statements(limits, limits.deep),
        style=st.sampled_from(STYLES),
        outputs=st.one_of(st.just(NAMES), several),
        in_loss=st.one_of(st.just(("a",)), st.just(NAMES), several),
        form=st.sampled_from(FORMS),
        loss=st.sampled_from(sorted(LOSSES)),
        outside=st.one_of(st.just("none"), st.sampled_from(sorted(_OUTSIDE))),
        stem=usually,
        input_grad=usually.map(lambda flag: not flag),
        variants=st.lists(st.sampled_from(sorted(VARIANTS)), max_size=2, unique=True).map(tuple),
        forwards=st.sampled_from([0, 0, 0, 0, 1, 2]),
    )


# ---------------------------------------------------------------------- making a program smaller


def smaller(program: Program) -> Iterator[Program]:
    """Programs one step simpler: a statement less, a body in its statement's place, a field at its plainest."""
    for body in _smaller_bodies(program.body):
        yield replace(program, body=body)
    plain = Program(())
    for one in fields(Program):
        if one.name not in ("body", "outputs", "in_loss") and getattr(program, one.name) != getattr(plain, one.name):
            yield replace(program, **{one.name: getattr(plain, one.name)})
    for name in ("outputs", "in_loss", "variants"):
        values = getattr(program, name)
        for position in range(len(values)):
            if len(values) > 1:
                yield replace(program, **{name: values[:position] + values[position + 1 :]})


def _smaller_bodies(body: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    for position, one in enumerate(body):
        before, after = body[:position], body[position + 1 :]
        yield before + after
        for name in _bodies(one):
            yield before + getattr(one, name) + after
            for inner in _smaller_bodies(getattr(one, name)):
                yield (*before, _with(one, name, inner), *after)
        for name, value in _plainest(one).items():
            if getattr(one, name) != value:
                yield (*before, _with(one, name, value), *after)


def _with(one: Statement, name: str, value: Any) -> Statement:
    changed: dict[str, Any] = {name: value}
    return replace(one, **changed)


def _bodies(one: Statement) -> list[str]:
    return [f.name for f in fields(one) if f.name in ("body", "then", "otherwise")]


def _plainest(one: Statement) -> dict[str, Any]:
    """The plainest value of each field that has one."""
    plain: dict[str, Any] = {"target": "a", "source": "a", "share": 0, "hooked": False, "style": "attribute"}
    plain |= {"kind": "linear", "call": "plain"} if isinstance(one, Layer) else {}
    plain |= {"call": "plain"} if isinstance(one, Block) else {}
    if isinstance(one, (Branch, Leave)) and CONDITIONS[one.condition.kind][1] != "static":
        plain["condition"] = Condition("sum", "a")
    plain |= {"count": 2}
    return {f.name: plain[f.name] for f in fields(one) if f.name in plain}
