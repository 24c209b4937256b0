"""A rule entry that says a parameter is unused, where the loss needs it.

## What it does

Holds every `[[unused]]` entry against what the trace found, parameter by parameter. An entry is stale
where a parameter it covers is used on every path, or, if the entry says never used (the default), on
some path. Parameters that the model has frozen are held against it too: they are traced as if they
required grad, so that freezing a layer cannot make a wrong entry look right.

## Why it matters

An entry that no longer holds is worse than none. With `action = "freeze"` or `"strip"` it takes away
weights that the loss would train, and nothing else says so: the run does not fail, the model just
learns less. With `"allow"` it is a hole in the gate: if the layer is really disconnected some day, the
old entry covers it up.

## Example

Bad: the entry says that `norm` is unused, and the factory freezes it; but forward calls it.

```python
def forward(self, x):
    return self.norm(self.used(x))
```

```toml
[[unused]]
params = ["norm.*"]
reason = "the last block has no norm"
action = "freeze"
```

Good: forward does not call it, and the entry is true.

```python
def forward(self, x):
    return self.used(x)
```

## What to do

Take the parameters out of the entry, or the entry out of the file; where the model freezes them because
of it, let them require grad again. If they are used on some paths only, write `when = "sometimes"`. If
a module is frozen on purpose although the loss uses it (a fixed backbone), it needs no entry: the rule
file is about parameters that are not used.

## Notes

The place is the entry in the rule file. Each entry is held against the trace on its own, so a wide
pattern is stale even where another entry says the right thing about the same parameter: narrow the wide
one.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checks.base import Case, Example, Finding, Severity
from ddplint.checks.wording import names, quoted, rule_location, subject, verb

CODE = "DDP102"
NAME = "stale-rule"
SEVERITY: Severity = "error"

_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.norm.requires_grad_(False)

    def forward(self, x):
        return self.used(x)


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.pow(2).sum()
"""

_STALE = _MODEL.replace("self.used(x)", "self.norm(self.used(x))")

_ENTRY = """
[[unused]]
params = ["norm.*"]
reason = "the last block has no norm"
action = "freeze"
"""

BAD = (
    Example(_STALE, rules=_ENTRY),
    Example(_STALE.replace("        self.norm.requires_grad_(False)\n", ""), rules=_ENTRY),
    Example(_STALE, rules=_ENTRY + 'when = "sometimes"\n'),
)
GOOD = (
    Example(_MODEL, rules=_ENTRY),
    Example(_STALE),
)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each entry and usage that contradicts it."""
    for entry in case.entries:
        for usage, words in (("always", "on every path"), ("sometimes", "on some paths")):
            stale = [p for p in case.covered(entry) if p.usage == usage and not case.agrees(entry, p)]
            if not stale or case.rules is None:
                continue
            claim = "never used" if entry.when == "never" else "used on some paths only"
            them = verb(stale, "it", "them")
            frozen = sum(not p.trainable for p in stale)
            message = (
                f"{subject(stale, case.analysis)} {verb(stale, 'is', 'are')} used {words}, but the entry for "
                f"{quoted(entry.params)} says {claim}"
            )
            fix = f"take {them} out of `params`, or delete the entry"
            if usage == "sometimes":
                fix += ', or write when = "sometimes"'
            if frozen:
                message += f", and the model has frozen {them if frozen == len(stale) else f'{frozen} of them'}"
                fix += "; if the loss is meant to train what is frozen, let it require grad again"
            location = rule_location(case.rules.path, entry)
            yield Finding(CODE, NAME, SEVERITY, message, names(stale), location, fix)
