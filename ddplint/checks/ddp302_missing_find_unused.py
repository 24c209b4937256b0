"""The flag is off, and DDP fails for it: some parameters are unused.

## What it does

Reports a wrap with `find_unused_parameters` off, the default, where DDP failed so in the rehearsal, and ran with
the flag on. The wrap is one that is found in the files of `[ddp] source`, or the one that the rule file declares
(`[ddp] find_unused_parameters = false`). `ddplint wraps --ckpt NAME` reports the same for any source.

## Why it matters

DDP waits for a gradient from each trainable parameter. One that gets none makes it raise "Expected to have
finished reduction in the prior iteration", at the second forward: a smoke test of one step passes, with
gradients that were not synchronised.

## Example

Reported: `spare` is trainable, the loss never reaches it, and the flag is off.

```toml
[ddp]
find_unused_parameters = false

[[unused]]
params = ["spare.*"]
reason = "kept so that old checkpoints load"
action = "allow"
```

Not reported: what is unused is frozen first.

```python
model.spare.requires_grad_(False)
```

## What to do

Freeze before the wrap what is never used, or remove it; then the flag stays off. Where what is unused varies
from step to step, turn the flag on.

## Notes

What counts is the model as the target's factory returns it: freeze there what the training script freezes before
the wrap. Documenting a parameter with action `allow` says that it is meant; DDP fails over it all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checks.base import OFF, Case, Example, Finding, Severity
from ddplint.checks.wording import freeze, line, names, rehearsed, subject, verb

CODE = "DDP302"
NAME = "missing-find-unused"
SEVERITY: Severity = "error"

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

_FROZEN = _MODEL.replace("return Net()", "model = Net()\n    model.spare.requires_grad_(False)\n    return model")

_RULES = """
[ddp]
find_unused_parameters = false

[[unused]]
params = ["spare.*"]
reason = "kept so that old checkpoints load"
action = "{}"
"""

BAD = (Example(_MODEL, rules=_RULES.format("allow")),)
GOOD = (
    Example(_FROZEN, rules=_RULES.format("freeze")),
    Example(_MODEL, rules=_RULES.format("allow").replace("= false", "= true\nstatic_graph = true")),
)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each wrap with the flag off."""
    if case.flag != "needed":
        return
    unused = case.analysis.unused()
    never = [p for p in unused if p.usage == "never"]
    for known in case.known:
        if known.setting != OFF:
            continue
        where = f"{line(known.location)}: " if known.location else ""
        who = f", and {subject(unused, case.analysis)} {verb(unused, 'is', 'are')} unused" if unused else ""
        message = f"{where}find_unused_parameters is off{who}: DDP fails{rehearsed(case.analysis)}"
        fix = "turn the flag on"
        if case.analysis.rehearsal is not None and case.analysis.rehearsal.frozen == "ok" and never:
            fix = f"before the wrap, freeze what is never used: {freeze(never, case.analysis)}; or {fix}"
        yield Finding(CODE, NAME, SEVERITY, message, names(unused), known.location, fix)
