"""Not every path of the step was traced, so the answer can be wrong.

## What it does

Reports a trace that ended before every path had been followed: the budget (`--paths`) was used up, or a path
needed the values of tensors that were traced without any, because the weights are too large for this machine.

## Why it matters

Everything else in the report is about the paths that were traced. A parameter that is listed as never used may
be used on the next one, and one that is used on every path so far may be left out there. So the verdict is
`incomplete`, and never `static`.

## Example

Bad: a few flags are read, and one path is all that may be traced (`--paths 1`).

```python
for flag in flags:
    x = self.first(x) if flag else -self.first(x)
return x
```

Good: as many paths as there are (the budget is 256 by default, and a flag needs two).

## What to do

Give a larger `--paths`. If a path needs values that meta tensors do not have, trace with `--device cpu` on a
machine that holds the weights, or with a smaller configuration of the same model: which parameters are used
seldom depends on their size. If a loop reads a new value in every round at many places of the code, narrow it in
the example inputs.

## Notes

A path that the target itself refuses (it raises under an answer that can't occur) is infeasible: it is counted
in the report, and does not make the answer incomplete.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checks.base import Case, Example, Finding, Severity
from ddplint.checks.wording import count

CODE = "DDP901"
NAME = "incomplete"
SEVERITY: Severity = "warning"

_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x, flags):
        for flag in flags:
            x = self.first(x) if flag else -self.first(x)
        return x


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4), torch.tensor([True, False])), {}


def loss(output):
    return output.sum()
"""

BAD = (Example(_MODEL, paths=1),)
GOOD = (Example(_MODEL),)


def check(case: Case) -> Iterator[Finding]:
    """One finding at most."""
    trace = case.analysis.trace
    if trace.complete:
        return
    message = f"{count(trace.paths, 'path')} of the step were traced, and there are more: what the others use is not known"
    fix = "give a larger --paths"
    if trace.device == "meta" and trace.device_reason:
        fix += ", and --device cpu on a machine that holds the weights, for meta tensors have no values to read"
    yield Finding(CODE, NAME, SEVERITY, message, (), None, fix)
