"""A parameter that reaches the loss only through a term that is multiplied by zero.

## What it does

Reports trainable parameters to which every way from the loss leads through a multiplication by a literal zero,
as in `loss + 0 * self.spare(x).sum()`. The place is that multiplication. One finding a place. It is
information: DDP runs well.

## Why it matters

The term is a known way to keep DDP content without `find_unused_parameters`, and a sound one on the path of a
branch that would leave a layer out. Where it is the only use on every path, the layer is dead all the same: it
is computed, stored, all-reduced and has optimizer state. Its gradient is zero, not None, so the optimizer steps
it: AdamW's weight decay pulls its weights towards zero, step by step. And zero times an infinite or NaN
activation is NaN, in the loss.

## Example

Reported: nothing of `spare` is in the loss but a zero.

```python
y = self.body(x)
return y.sum() + 0.0 * self.spare(x).sum()
```

Not reported: it is frozen, and not computed.

```python
self.spare.requires_grad_(False)
```

## What to do

If the layer is not used on any path, freeze it before the wrap, or do not build it, and take the term out. If
the zero stands in for a path that the example inputs do not take, there is nothing to do; give those inputs as
`variants` and it is not reported any more. If the weights have to keep their values, put them into an optimizer
group without weight decay.

## Notes

"Used" is decided by the graph, not by a gradient's value: a gradient of zeros is a gradient, so such a
parameter counts as always used. Only a zero that is written as a number is seen, not a tensor that happens to
hold one.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checks.base import Case, Example, Finding, Severity, grouped
from ddplint.checks.wording import freeze, line, names, subject, verb

CODE = "DDP208"
NAME = "kept-alive"
SEVERITY: Severity = "info"

_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.body(x)
        return y.sum() + 0.0 * self.spare(x).sum()


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output
"""

_FROZEN = _MODEL.replace(" + 0.0 * self.spare(x).sum()", "").replace(
    "nn.Linear(4, 4), nn.Linear(4, 4)\n", "nn.Linear(4, 4), nn.Linear(4, 4)\n        self.spare.requires_grad_(False)\n"
)

BAD = (
    Example(_MODEL),
    Example(_MODEL.replace("0.0 * self.spare(x).sum()", "sum(p.sum() for p in self.spare.parameters()) * 0")),
)
GOOD = (Example(_FROZEN), Example(_MODEL.replace("0.0 *", "0.1 *")))


def check(case: Case) -> Iterator[Finding]:
    """One finding for each multiplication by zero that is all there is to a parameter."""
    for group in grouped((p for p in case.trainable if p.zeroed is not None), lambda p: p.zeroed):
        location = group[0].zeroed
        if location is None:
            continue
        message = (
            f"{line(location)}: {subject(group, case.analysis)} {verb(group, 'reaches', 'reach')} the loss only multiplied "
            f"by zero: DDP is content, {verb(group, 'its gradient is', 'their gradients are')} zero, and weight decay still "
            f"moves {verb(group, 'it', 'them')}"
        )
        fix = (
            f"if no path needs {verb(group, 'it', 'them')}, take the term out and freeze before the DDP wrap: "
            f"{freeze(group, case.analysis)}"
        )
        yield Finding(CODE, NAME, SEVERITY, message, names(group), location, fix)
