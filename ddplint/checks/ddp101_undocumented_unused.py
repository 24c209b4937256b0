"""A trainable parameter that no gradient ever reaches, and no rule says so.

## What it does

Reports every parameter that requires grad, is used on no path of the step, and is covered by no entry
of the rule file. Without a rule file (`--target`) every such parameter is reported. Parameters that one
place in the code explains make one finding, which names the module they share, the cause, and the line.
An entry with `when = "sometimes"` does not document a parameter that is never used: what was a branch
has become dead weight.

## Why it matters

`DistributedDataParallel` waits, in every backward, for the gradient of each parameter it wraps. One
that never comes makes the second forward raise "Expected to have finished reduction in the prior
iteration", which is why people turn on `find_unused_parameters=True` and forget it. The flag then walks
the autograd graph in every step, all-reduces zeros for weights that never train, and hides the next
layer that somebody forgets to call. This is the rule that a project gates on: the set of unused
parameters is written down, and an unexpected addition fails the build.

## Example

Bad: `spare` is built, and forward never calls it.

```python
def __init__(self):
    super().__init__()
    self.used = nn.Linear(4, 4)
    self.spare = nn.Linear(4, 4)

def forward(self, x):
    return self.used(x)
```

Good: it is frozen where it is built, or written down with a reason.

```python
self.spare = nn.Linear(4, 4).requires_grad_(False)
```

```toml
[[unused]]
params = ["spare.*"]
reason = "kept so that old checkpoints load"
action = "allow"
```

## What to do

In this order: call the module if it was forgotten; do not build it if it is not needed; freeze it
**before** the model is wrapped, so that DDP does not manage it; or paste the entry that the finding
prints into the rule file and put the true reason in. `ddplint why NAME` shows how far a parameter's
value goes.

## Notes

Whether a parameter is used is decided by the graph, never by the value of its gradient: a gradient of
zeros is a gradient. The same parameters can appear in DDP201 or DDP202 as well. That is deliberate:
DDP101 is the gate, about what is written down; those two point at the line in the code that is likely
to be the mistake. Documenting the parameters, or freezing them, settles all three.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checks.base import Case, Example, Finding, Severity, by_place
from ddplint.checks.wording import because, freeze, names, place, rule_location, subject, toml_entry, verb

CODE = "DDP101"
NAME = "undocumented-unused"
SEVERITY: Severity = "error"

_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.spare = nn.Linear(4, 4)

    def forward(self, x):
        return self.used(x)


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""

_ENTRY = """
[[unused]]
params = ["spare.*"]
reason = "kept so that old checkpoints load"
action = "allow"
"""

_DISCARDED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.auxiliary = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        auxiliary = self.auxiliary(x) * self.scale
        return self.head(x)


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""

BAD = (
    Example(_MODEL),
    Example(_DISCARDED),
    Example(_MODEL, rules=_ENTRY.replace("spare.*", "spare.weight")),
    Example(_MODEL, rules=_ENTRY + 'when = "sometimes"\n'),
)
GOOD = (
    Example(_MODEL, rules=_ENTRY),
    Example(_MODEL.replace("self.spare = nn.Linear(4, 4)", "self.spare = nn.Linear(4, 4).requires_grad_(False)")),
    Example(_MODEL.replace("self.used(x)", "self.spare(self.used(x))")),
)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each place that leaves trainable parameters unused, where no entry says so."""
    for group in by_place(case.undocumented("never")):
        message = f"{subject(group, case.analysis)} {verb(group, 'is', 'are')} never used: {because(group)}"
        entry = case.covering(group[0])
        if case.rules and entry:
            where = place(rule_location(case.rules.path, entry))
            message += f"; the entry at {where} says that some path uses {verb(group, 'it', 'them')}"
        them = verb(group, "it", "them")
        fix = (
            f"use {them}, do not build {them}, freeze {them} before the DDP wrap: "
            f"{freeze(group, case.analysis)}, or document {them}:\n{toml_entry(group, case.analysis)}"
        )
        yield Finding(CODE, NAME, SEVERITY, message, names(group), group[0].location, fix)
