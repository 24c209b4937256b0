"""A parameter whose value takes part in the loss, but whose gradient is cut on the way.

## What it does

Reports unused, undocumented parameters whose value the loss depends on while no gradient flows back:
between the two lies a `detach`, `.data`, a `no_grad` block, an `argmax` or another operation without a
derivative, a cast to an integer type, or a tensor that was rebuilt from numbers. The finding's place is
the line that cuts. One finding a place.

## Why it matters

This is the unused parameter that looks used: the module is called, its output changes the loss, the
loss goes down (the rest of the model learns), and the parameter keeps the values it was initialised
with. Often the cut was meant for another tensor, or a block came to lie under a `no_grad` that was
written for inference. For DDP it is unused like any other.

## Example

Bad: the gate is computed under `no_grad`.

```python
def forward(self, x):
    with torch.no_grad():
        gate = self.gate(x).sigmoid()
    return self.body(x) * gate
```

Good: the gradient can flow.

```python
def forward(self, x):
    gate = self.gate(x).sigmoid()
    return self.body(x) * gate
```

## What to do

Look at the line. If the cut is a mistake, take it out, or put it on the tensor it was meant for; for a
choice made by `argmax`, use a relaxation that has a gradient (softmax, straight-through, Gumbel). If
the cut is meant (a target network, a fixed feature extractor), the parameters are not trained: freeze
them before the wrap, or document them in the rule file.

## Notes

A warning, for the cut can be meant. Undocumented parameters are reported by DDP101 as well: that one is
the gate and an error, this one says which line is likely to be the mistake. Documented parameters get
neither. An edge carries gradient if and only if the tensor requires grad at the moment it is consumed,
so no list of cutting operations is needed, and a cut by an operation that is not named here is found
just the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checks.base import Case, Example, Finding, Severity, by_place
from ddplint.checks.wording import freeze, names, place, subject, verb

CODE = "DDP201"
NAME = "severed-gradient"
SEVERITY: Severity = "warning"

_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.gate = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            gate = self.gate(x).sigmoid()
        return self.body(x) * gate


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""

_PLAIN = _MODEL.replace(
    "        with torch.no_grad():\n            gate = self.gate(x).sigmoid()\n",
    "        gate = self.gate(x).sigmoid()\n",
)

_ENTRY = """
[[unused]]
params = ["gate.*"]
reason = "a fixed random gate; it is not meant to learn"
action = "allow"
"""

BAD = (
    Example(_MODEL),
    Example(_PLAIN.replace("* gate", "* gate.detach()")),
    Example(_PLAIN.replace("self.gate(x).sigmoid()", "torch.nn.functional.one_hot(self.gate(x).argmax(-1), 4)")),
)
GOOD = (
    Example(_PLAIN),
    Example(_MODEL, rules=_ENTRY),
    Example(_MODEL.replace("return Net()", "model = Net()\n    model.gate.requires_grad_(False)\n    return model")),
)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each place that cuts the gradient of undocumented parameters."""
    severed = (p for p in case.undocumented("never") if p.cause == "severed")
    for group in by_place(severed):
        location = group[0].location
        where = f" at {place(location)}" if location else ""
        message = (
            f"the value of {subject(group, case.analysis)} reaches the loss, but the gradient is cut{where}, "
            f"so {verb(group, 'it never trains', 'they never train')}"
        )
        fix = (
            "if that line is a mistake, let the gradient through; if it is meant, freeze before the DDP "
            f"wrap: {freeze(group, case.analysis)}"
        )
        yield Finding(CODE, NAME, SEVERITY, message, names(group), location, fix)
