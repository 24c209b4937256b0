"""A parameter that its rule says is to be frozen still requires grad.

## What it does

For every `[[unused]]` entry with `action = "freeze"`: reports the parameters it covers that are indeed
unused and still have `requires_grad=True` when the factory returns the model.

## Why it matters

The entry is a promise about the model: these weights are dead, and frozen, so that DDP does not wait
for them and the flag `find_unused_parameters` can stay off. If the freezing is lost (a refactoring, a
later `requires_grad_(True)` on the whole model, a layer that is replaced after it was frozen), DDP
raises at the second forward of the training run. It is found here instead.

## Example

Bad: nothing freezes `spare`.

```python
self.used = nn.Linear(4, 4)
self.spare = nn.Linear(4, 4)
```

```toml
[[unused]]
params = ["spare.*"]
reason = "only the pretraining loss uses it"
action = "freeze"
```

Good: the factory freezes what the entry names.

```python
self.spare = nn.Linear(4, 4).requires_grad_(False)
```

## What to do

Set `requires_grad_(False)` on the parameters before the model is wrapped: DDP collects the parameters
that require grad when it is constructed, and a later change is not seen. If they should stay trainable,
change the entry's action to `"allow"`.

## Notes

A covered parameter that the loss does use is not reported here but as a stale rule (DDP102): freezing
it would be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checks.base import Case, Example, Finding, Severity
from ddplint.checks.wording import freeze, names, quoted, rule_location, subject, verb

CODE = "DDP104"
NAME = "not-frozen"
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
reason = "only the pretraining loss uses it"
action = "freeze"
"""

_FROZEN = _MODEL.replace("self.spare = nn.Linear(4, 4)", "self.spare = nn.Linear(4, 4).requires_grad_(False)")

BAD = (
    Example(_MODEL, rules=_ENTRY),
    Example(_FROZEN.replace("return Net()", "return Net().requires_grad_(True)"), rules=_ENTRY),
)
GOOD = (
    Example(_FROZEN, rules=_ENTRY),
    Example(_MODEL, rules=_ENTRY.replace('"freeze"', '"allow"')),
)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each entry whose parameters are to be frozen and are not."""
    for entry in case.entries:
        group = [p for p in case.covered(entry) if p.trainable and case.agrees(entry, p)]
        if entry.action == "freeze" and group and case.rules is not None:
            message = (
                f"{subject(group, case.analysis)} still {verb(group, 'requires', 'require')} grad, but the "
                f"entry for {quoted(entry.params)} says freeze"
            )
            how = freeze(group, case.analysis)
            fix = f'freeze before the DDP wrap: {how}; or change the entry to action = "allow"'
            location = rule_location(case.rules.path, entry)
            yield Finding(CODE, NAME, SEVERITY, message, names(group), location, fix)
