"""The flag is on, and what is used never changes: `static_graph=True` does the same for less.

## What it does

Reports a wrap that has the flag on and not `static_graph`, where the trace found the same parameters used on
every path, some never, and where DDP with `static_graph=True` ran in the rehearsal. The wrap is what the rule file
declares (`[ddp] find_unused_parameters = true`), or one that is found in the files of `[ddp] source`. Without a known
wrap nothing is reported: with the flag off there is no search to save. Where DDP runs with the flag off, it is
DDP301.

## Why it matters

With the flag on DDP walks the autograd graph in every step, and reduces a map of what was used besides the
gradients. With `static_graph=True` it finds out in the first step, and keeps to it: no walk, no map, buckets in
the order in which gradients really come, so that more of the communication is hidden behind backward. It also
takes re-entrant checkpoints (DDP205), which the flag does not.

## Example

Reported: `spare` is never used, and is allowed to be, so the flag is on.

```toml
[[unused]]
params = ["spare.*"]
reason = "kept so that old checkpoints load"
action = "allow"

[ddp]
find_unused_parameters = true
```

Not reported: the graph is declared static.

```toml
[ddp]
find_unused_parameters = true
static_graph = true
```

## What to do

Wrap with `static_graph=True` and without the flag, and write `static_graph = true` into the rule file. Better
still, freeze what is never used: then the flag can be off.

## Notes

A static graph is a promise: if the set of used parameters changes after the first step, DDP raises. That is why
this is said only if no path, rank or step showed a change, and if every path was traced. A parameter that
reaches forward's output but not the loss (DDP202) breaks it in the third step.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checks.base import OFF, ON, STATIC, Case, Example, Finding, Severity
from ddplint.checks.wording import line

CODE = "DDP303"
NAME = "static-graph-possible"
SEVERITY: Severity = "info"

_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.used(x)


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""

_VARIANTS = """
def variants():
    return [inputs, lambda: ((-9 * torch.ones(2, 4),), {})]


def loss"""

_DYNAMIC = _MODEL.replace("return self.used(x)", "return self.spare(self.used(x)) if x.sum() > 0 else self.used(x)").replace(
    "\ndef loss", _VARIANTS
)

_RULES = """
[[unused]]
params = ["spare.*"]
reason = "kept so that old checkpoints load"
action = "allow"
{}
[ddp]
find_unused_parameters = true
"""

BAD = (Example(_MODEL, rules=_RULES.format("")),)
GOOD = (
    Example(_MODEL, rules=_RULES.format("") + "static_graph = true\n"),
    Example(_MODEL.replace("self.used(x)", "self.used(self.spare(x))"), rules="[ddp]\nfind_unused_parameters = false\n"),
    Example(_DYNAMIC, rules=_RULES.format('when = "sometimes"\n')),
)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each wrap with the flag on."""
    if not case.static or case.outcome(STATIC) != "ok" or case.outcome(OFF) == "ok":
        return
    message = (
        "the same parameters are used on every path, and DDP runs with static_graph=True (rehearsed), which needs no "
        "search for unused parameters in every step"
    )
    fix = "wrap with static_graph=True instead of find_unused_parameters=True, and declare it under [ddp]"
    for known in case.known:
        if known.setting == ON:
            where = f"{line(known.location)}: " if known.location else ""
            yield Finding(CODE, NAME, SEVERITY, f"{where}{message}", (), known.location, fix)
