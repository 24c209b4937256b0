"""A parameter that its rule says is to be stripped is still in the model.

## What it does

For every `[[unused]]` entry with `action = "strip"`: reports the unused parameters it covers that the
model still has, whether they require grad or not.

## Why it matters

Stripping promises that dead weights are gone: from memory on every GPU, from the optimizer's state
(twice their size with Adam), from each checkpoint that is written, and from what DDP manages. A frozen
leftover no longer disturbs DDP, but it is still loaded, moved and saved; one that requires grad does
all the harm of an undocumented unused parameter while the rule file says that it does not exist.

## Example

Bad: the factory still builds the decoder.

```python
self.encoder = nn.Linear(4, 4)
self.decoder = nn.Linear(4, 4)
```

```toml
[[unused]]
params = ["decoder.*"]
reason = "finetuning needs no decoder"
action = "strip"
```

Good: it is not there.

```python
self.encoder = nn.Linear(4, 4)
```

## What to do

Do not build the module for this checkpoint type, or delete it after loading (`del model.decoder`)
before the model is wrapped and before the optimizer takes its parameters. If it has to stay, change the
entry's action to `"freeze"` or `"allow"`.

## Notes

An entry with `action = "strip"` whose patterns fit nothing is as it should be, so it is no unmatched
pattern (DDP103). A covered parameter that the loss uses is a stale rule (DDP102), not a leftover.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checks.base import Case, Example, Finding, Severity
from ddplint.checks.wording import count, names, quoted, roots, rule_location, short, size, subject, verb

CODE = "DDP105"
NAME = "not-stripped"
SEVERITY: Severity = "error"

_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.decoder = nn.Linear(4, 4)

    def forward(self, x):
        return self.encoder(x)


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""

_ENTRY = """
[[unused]]
params = ["decoder.*"]
reason = "finetuning needs no decoder"
action = "strip"
"""

BAD = (
    Example(_MODEL, rules=_ENTRY),
    Example(
        _MODEL.replace("self.decoder = nn.Linear(4, 4)", "self.decoder = nn.Linear(4, 4).requires_grad_(False)"),
        _ENTRY,
    ),
)
GOOD = (
    Example(_MODEL.replace("        self.decoder = nn.Linear(4, 4)\n", ""), rules=_ENTRY),
    Example(_MODEL, rules=_ENTRY.replace('"strip"', '"allow"')),
)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each entry whose parameters are to be stripped and are still there."""
    for entry in case.entries:
        group = [p for p in case.covered(entry) if case.agrees(entry, p)]
        if entry.action == "strip" and group and case.rules is not None:
            message = (
                f"{subject(group, case.analysis)} {verb(group, 'is', 'are')} still in the model, but the "
                f"entry for {quoted(entry.params)} says strip"
            )
            modules = short(roots(group, case.analysis))
            fix = (
                f"do not build {modules}, or delete {verb(group, 'it', 'them')} before the DDP wrap and the "
                f"optimizer ({count(len(group), 'parameter')}, {size(sum(p.bytes for p in group))})"
            )
            location = rule_location(case.rules.path, entry)
            yield Finding(CODE, NAME, SEVERITY, message, names(group), location, fix)
