"""A parameter that the loss trains and that is not in the model, so that DDP does not know it.

## What it does

Reports tensors of the class `nn.Parameter` that require grad, that backward from the loss reaches, and that
are not among the model's parameters: a criterion with weights of its own (a margin head, class centres, learned
loss weights), a projection that was built beside the model. The place is where one is first used. One finding a
function. Where the optimizers are known (Lightning's `configure_optimizers`, those that accelerate prepared), their
parameters that the model does not hold are reported too.

## Why it matters

DDP averages the gradients of what it wraps, and of nothing else. If the optimizer has such a parameter, each
rank steps it with the gradient of its own batch, so the ranks drift apart from the first step on, without any
error. The checkpoint that rank 0 saves has rank 0's copy. If the optimizer does not have it, it never trains.

## Example

Bad: the criterion has weights, and lives outside.

```python
scale = nn.Parameter(torch.ones(2))
```

```python
def loss(output):
    return (output * scale).sum()
```

Good: the model holds them, and forward uses them.

```python
self.scale = nn.Parameter(torch.ones(2))
```

```python
return self.body(x) * self.scale
```

## What to do

Make the criterion a submodule of the model and compute the loss in its forward. Or wrap the criterion in a DDP
of its own, if it is a module whose forward computes the loss. If it is not meant to train (a fixed perceptual
loss, a teacher), call `requires_grad_(False)` on it, which saves its gradients too.

## Notes

DDP runs well with such a parameter under every setting, which is why nobody notices: a clean rehearsal says
nothing about it. Plain tensors that require grad are not reported, for most of them are inputs whose gradient
is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.analysis import Outside
from ddplint.checks.base import Case, Example, Finding, Severity, grouped
from ddplint.checks.wording import amount, count, line, verb

CODE = "DDP207"
NAME = "outside-ddp"
SEVERITY: Severity = "error"

_MODEL = """
import torch
from torch import nn

scale = nn.Parameter(torch.ones(2))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 2)

    def forward(self, x):
        return self.body(x)


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return (output * scale).sum()
"""

_CRITERION = _MODEL.replace("scale = nn.Parameter(torch.ones(2))", "criterion = nn.Linear(2, 1)").replace(
    "(output * scale).sum()", "criterion(output).sum()"
)

_INSIDE = (
    _MODEL.replace("scale = nn.Parameter(torch.ones(2))\n\n\n", "\n")
    .replace(
        "self.body = nn.Linear(4, 2)\n", "self.body = nn.Linear(4, 2)\n        self.scale = nn.Parameter(torch.ones(2))\n"
    )
    .replace("return self.body(x)\n", "return self.body(x) * self.scale\n")
    .replace("(output * scale).sum()", "output.sum()")
)

BAD = (Example(_MODEL), Example(_CRITERION))
GOOD = (
    Example(_INSIDE),
    Example(_CRITERION.replace("nn.Linear(2, 1)", "nn.Linear(2, 1).requires_grad_(False)")),
)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each function that uses parameters of others than the model, one for what only optimizers have."""
    for group in grouped(case.analysis.outside, _function):
        location = group[0].location
        where = f"{line(location)}: " if location else ""
        numel = sum(entry.numel for entry in group)
        shapes = ", ".join(dict.fromkeys(str(entry.shape) for entry in group[:3])) + (", …" if len(group) > 3 else "")
        gradients, them = verb(group, "its gradient", "their gradients"), verb(group, "it", "them")
        who = "the loss trains" if group[0].in_loss else "the optimizer has"
        message = (
            f"{where}{count(len(group), 'parameter')} ({amount(numel)} weights, shape {shapes}) that {who} "
            f"{verb(group, 'is', 'are')} not in the model: DDP does not average {gradients}, and the ranks drift apart "
            "without an error"
        )
        fix = (
            f"make {them} part of the model and use {them} in its forward, or wrap the criterion in a DDP of its own, or "
            f"call requires_grad_(False) if {verb(group, 'it is', 'they are')} not meant to train"
        )
        yield Finding(CODE, NAME, SEVERITY, message, (), location, fix)


def _function(entry: Outside) -> tuple[str, str] | bool:
    return (entry.location.file, entry.location.function) if entry.location else entry.in_loss
