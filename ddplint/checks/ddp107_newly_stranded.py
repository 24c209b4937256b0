"""A parameter that lost its gradient by the change that is being looked at.

## What it does

Only under `ddplint check --base REV`. Reports each trainable parameter that is unused now, on every path or on some, and
was not so at the revision, with the cause and the line; parameters that one place explains are one finding. Whether an
entry of the rule file covers them is not asked: a broad pattern such as `heads.**` would let every new head pass that
somebody forgot to call. An entry that this change itself writes does count, for that is how a team agrees to it.

## Why it matters

A reviewer sees the change and not the model. That a refactored branch leaves a projection behind is in no line of the
diff, the loss still falls, and with `find_unused_parameters=True` nothing ever says so. This is the one question about a
pull request that a person can't answer by reading it.

## Example

Bad: the change no longer adds what `extra` computes, and `heads.**` is documented as unused.

```python
def forward(self, x):
    self.heads["extra"](x)
    return self.used(x)
```

Good: the value goes on to where it is needed, or the change says in the rule file that it is meant.

```toml
[[unused]]
params = ["heads.extra.**"]
reason = "heads of other tasks"
action = "allow"
```

## What to do

Look at the line the finding names. If the parameters should train, mend it; if not, do not build them, or write an
entry for exactly these in the same change.

## Notes

With `--base` only what changed is reported: findings that were there at the revision are not, and DDP101 is not repeated
for what is reported here. A renamed module counts as a new one. What is used again is told on stderr and in the JSON
report (`base.freed`).
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checks.base import Case, Example, Finding, Severity, by_place
from ddplint.checks.wording import because, freeze, names, subject, toml_entry, verb

CODE = "DDP107"
NAME = "newly-stranded"
SEVERITY: Severity = "error"

_BEFORE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.heads = nn.ModuleDict({"spare": nn.Linear(4, 4), "extra": nn.Linear(4, 4)})

    def forward(self, x):
        return self.used(x) + self.heads["extra"](x)


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""

_AFTER = _BEFORE.replace("return self.used(x) + self.heads", "self.heads").replace(
    '["extra"](x)\n', '["extra"](x)\n        return self.used(x)\n'
)

_BROAD = """
[[unused]]
params = ["heads.**"]
reason = "heads of other tasks"
action = "allow"
"""

_EXTRA = _BROAD.replace("heads.**", "heads.extra.**")
_SPARE = _BROAD.replace("heads.**", "heads.spare.**")

BAD = (
    Example(_AFTER, rules=_BROAD, before=_BEFORE),
    Example(_AFTER, rules=_SPARE, before=_BEFORE),
)
GOOD = (
    Example(_BEFORE, rules=_SPARE, before=_BEFORE),
    Example(_AFTER, rules=_BROAD, before=_AFTER),
    Example(_AFTER, rules=_SPARE + _EXTRA, before=_AFTER),
)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each place that leaves parameters unused which were used at the base."""
    if case.base is None:
        return
    stranded = set(case.base.stranded)
    under = f" under {case.rules.name}" if case.rules else ""
    for group in by_place(p for p in case.trainable if p.name in stranded):
        new = f"this change strands {subject(group, case.analysis)}{under}"
        some = " on some paths" if group[0].usage == "sometimes" else ""
        message = f"{new}{some}: {because(group)} (used at {case.base.rev})"
        them = verb(group, "it", "them")
        fix = (
            f"mend the line if {verb(group, 'it', 'they')} should train; do not build {them}, or freeze {them} before the "
            f"DDP wrap ({freeze(group, case.analysis)}); or agree to it in this change:\n{toml_entry(group, case.analysis)}"
        )
        yield Finding(CODE, NAME, SEVERITY, message, names(group), group[0].location, fix)
