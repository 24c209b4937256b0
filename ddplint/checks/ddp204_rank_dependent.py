"""A parameter that one rank uses and another does not, because the code asks which rank it is on.

## What it does

Traces the step as rank 0 and as rank 1 and compares. Reports trainable parameters that the loss needs on
one rank only, if no entry with `when = "sometimes"` says so. The place is where the code asks for the
rank; the message says which rank leaves them out, which one raises, and which one waits for it.

## Why it matters

The ranks of a DDP job add up their gradients bucket by bucket, in one order. A rank that has no gradient
for a parameter never gets its bucket ready: with the flag off it raises in its next forward, while the
others wait in an all-reduce that it never joins, until the backend's time limit (ten minutes and more
with NCCL) ends them with an error about a collective. The stack trace shows the wait, not the branch. A
run on one GPU shows nothing at all.

## Example

Bad: only rank 0 runs the extra layer.

```python
y = self.body(x)
if dist.is_initialized() and dist.get_rank() == 0:
    y = y + self.extra(x)
return y
```

Good: every rank runs it, and rank 0 alone does what has no gradient.

```python
y = self.body(x) + self.extra(x)
if dist.is_initialized() and dist.get_rank() == 0:
    self.seen = float(len(y))
return y
```

## What to do

Run the same modules on every rank. What is meant for one rank (logging, saving, metrics) belongs outside
of what the loss is made of. If ranks are meant to train different parts, DDP over the whole model is the
wrong wrap: give each part a process group of its own. With `find_unused_parameters=True` the ranks agree
on what was used, and the step runs as long as each rank uses something; then document the parameters with
`when = "sometimes"`.

## Notes

Ranks are those of a fake process group in one process, so nothing has to be started, and nothing hangs.
`RANK` in the environment and `torch.distributed.get_rank()` are seen; a rank that comes from elsewhere (an
argument, a host name) is not. `ddplint verify` puts the same question to two real processes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checks.base import OFF, ON, Case, Example, Finding, Severity, grouped
from ddplint.checks.wording import details, line, names, subject, toml_entry, verb

CODE = "DDP204"
NAME = "rank-dependent"
SEVERITY: Severity = "error"

_MODEL = """
import torch
import torch.distributed as dist
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.extra = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.body(x)
        if dist.is_initialized() and dist.get_rank() == 0:
            y = y + self.extra(x)
        return y


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""

BAD = (
    Example(_MODEL),
    Example(_MODEL.replace("            y = y + self.extra(x)\n", "            return y\n        y = y + self.extra(x)\n")),
)
GOOD = (
    Example(
        _MODEL.replace("y = self.body(x)\n", "y = self.body(x) + self.extra(x)\n").replace(
            "y = y + self.extra(x)", "self.seen = float(len(y))"
        )
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each place and rank."""
    by_rank = (p for p in case.undocumented("sometimes") if p.decided_by == "rank")
    for group in grouped(by_rank, lambda p: (p.place, p.why)):
        first = group[0]
        where = f"{line(first.location)}: " if first.location else ""
        message = f"{where}{subject(group, case.analysis)} {verb(group, 'is', 'are')} {first.why}; {_consequence(case)}"
        fix = "run the same modules on every rank; what is for one rank only belongs outside of what the loss is made of"
        if case.outcome(ON) == "ok":
            fix += f". If it is meant: find_unused_parameters=True (rehearsed: ok), and\n{toml_entry(group, case.analysis)}"
        yield Finding(CODE, NAME, SEVERITY, message, names(group), first.location, fix)


def _consequence(case: Case) -> str:
    """Which rank raises and which one hangs."""
    told = [
        f"with {setting} {outcome} ({details(case.analysis, setting)})"
        for setting in (OFF, ON)
        if (outcome := case.outcome(setting)) not in (None, "ok")
    ]
    if told:
        return f"rehearsed {' and '.join(told)}"
    return "the rank without them raises in its next forward, and the others wait for it"
