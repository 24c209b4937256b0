"""A parameter that reaches what forward returns, but not the loss: dead, and DDP does not notice.

## What it does

Reports unused, undocumented parameters that DDP's walk from forward's return value reaches, while
backward from the loss does not: an auxiliary output, a second head, hidden states that are returned and
that the loss leaves out. The place is where the value that is returned was computed last. One finding a
place.

## Why it matters

With `find_unused_parameters=True` DDP looks for unused parameters from the tensors that **forward
returns**, not from the loss. These look used to it. It waits for gradients that never come: in a plain
output structure the step runs, `.grad` stays None and nothing is said; if the output is a dataclass, it
raises in spite of the flag; with `static_graph=True` the third forward fails. With the flag off, the
second forward raises. So the flag that people reach for does not help reliably, and the weights never
train.

## Example

Bad: forward returns two outputs, the loss uses one.

```python
def forward(self, x):
    hidden = self.body(x)
    return self.head(hidden), self.auxiliary(hidden)
```

```python
def loss(output):
    return output[0].sum()
```

Good: both are in the loss.

```python
def loss(output):
    return output[0].sum() + output[1].sum()
```

## What to do

Add the output to the loss if it was forgotten. Else do not compute it in training, or freeze its module
before the wrap. For models from libraries there is often a switch (`add_pooling_layer=False`,
`output_hidden_states=False`).

## Notes

What DDP does with each setting was measured on torch 2.13 with two processes over gloo; the walk is in
`Reducer::prepare_for_backward`, torch/csrc/distributed/c10d/reducer.cpp. Undocumented parameters are
reported by DDP101 as well: that one is the gate, this one points at the output. Documented parameters
get neither.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checks.base import Case, Example, Finding, Severity, by_place
from ddplint.checks.wording import freeze, names, place, subject, verb

CODE = "DDP202"
NAME = "output-only"
SEVERITY: Severity = "error"

_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.auxiliary = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.body(x)
        return self.head(hidden), self.auxiliary(hidden)


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output[0].sum()
"""

_ENTRY = """
[[unused]]
params = ["auxiliary.*"]
reason = "only the pretraining loss uses the second output"
action = "allow"
"""

_DICT = _MODEL.replace(
    "return self.head(hidden), self.auxiliary(hidden)",
    'return {"score": self.head(hidden), "extra": [self.auxiliary(hidden)]}',
).replace("output[0]", 'output["score"]')

BAD = (Example(_MODEL), Example(_DICT))
GOOD = (
    Example(_MODEL.replace("return output[0].sum()", "return output[0].sum() + output[1].sum()")),
    Example(_MODEL, rules=_ENTRY),
    Example(_MODEL.replace("return Net()", "model = Net()\n    model.auxiliary.requires_grad_(False)\n    return model")),
)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each place whose value forward returns and the loss leaves out."""
    returned = (p for p in case.undocumented("never") if p.cause == "output-only")
    for group in by_place(returned):
        location = group[0].location
        where = f" (computed at {place(location)})" if location else ""
        message = (
            f"{subject(group, case.analysis)} {verb(group, 'reaches', 'reach')} forward's output{where}, but "
            f"not the loss: never trained, and DDP's search for unused parameters does not find "
            f"{verb(group, 'it', 'them')}"
        )
        fix = (
            "add that output to the loss, or do not compute it, or freeze before the DDP wrap: "
            f"{freeze(group, case.analysis)}"
        )
        yield Finding(CODE, NAME, SEVERITY, message, names(group), location, fix)
