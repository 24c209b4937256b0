"""An entry of the rule file whose reason is still to be written.

## What it does

Reports each `[[unused]]` entry whose `reason` only stands for one: "TODO", as `ddplint update` writes it, or another
word or sign that says nothing ("tbd", "fixme", "?", "..."). A reason may begin with such a word and go on: what counts
is that something is left to read without it.

## Why it matters

The reason is what a rule file is for. The set of unused parameters could be written down by a machine, and
`ddplint update` does; that somebody knows why they are unused, and agrees, only a person can say. Without it the gate
documents whatever the model happens to be.

## Example

Bad: what `ddplint update` wrote, as it wrote it.

```toml
[[unused]]
params = ["spare.*"]
reason = "TODO"
action = "allow"
```

Good: the reason is there.

```toml
[[unused]]
params = ["spare.*"]
reason = "kept so that old checkpoints load"
action = "allow"
```

## What to do

Read the comment above the entry, which has the cause and the line, or ask `ddplint why NAME`. Then write why it is
right that these parameters are unused. If there is no such reason, mend the model instead.

## Notes

A reason that is empty or missing is no finding but an error of the rule file (exit 2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddplint.checks.base import Case, Example, Finding, Severity
from ddplint.checks.wording import names, quoted, rule_location
from ddplint.rules import TODO

CODE = "DDP106"
NAME = "missing-reason"
SEVERITY: Severity = "error"

_EMPTY = frozenset({TODO.lower(), "tbd", "fixme", "xxx", "tba", "wip", "placeholder", "reason", "none", "unknown", "na"})

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

_ENTRY = """
[[unused]]
params = ["spare.*"]
reason = "TODO"
action = "allow"
"""

BAD = (
    Example(_MODEL, rules=_ENTRY),
    Example(_MODEL, rules=_ENTRY.replace("TODO", "todo: ...")),
    Example(_MODEL, rules=_ENTRY.replace("TODO", "-")),
)
GOOD = (
    Example(_MODEL, rules=_ENTRY.replace("TODO", "kept so that old checkpoints load")),
    Example(_MODEL, rules=_ENTRY.replace("TODO", "todo list of the next release, not called before")),
)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each entry whose reason says nothing."""
    for entry in case.entries:
        words = [word for word in re.findall(r"\w+", entry.reason.lower()) if word not in _EMPTY]
        if words or case.rules is None:
            continue
        message = f"the entry for {quoted(entry.params)} has no reason yet, only {quoted([entry.reason])}"
        fix = "write why the loss does not need them; if there is no reason, mend the model"
        location = rule_location(case.rules.path, entry)
        yield Finding(CODE, NAME, SEVERITY, message, names(case.covered(entry)), location, fix)
