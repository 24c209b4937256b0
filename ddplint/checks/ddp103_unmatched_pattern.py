"""A pattern in a rule file that names no parameter of the model.

## What it does

Reports each `[[unused]]` entry with a pattern that fits neither the name of a parameter nor one of its
aliases (the further names of a tied or shared parameter). An entry with `optional = true` is left
alone, and so is one with `action = "strip"`: what has been stripped is not there, which is what the
entry asks for.

## Why it matters

A pattern that fits nothing documents nothing. Mostly it is a layer that was renamed: under its new name
its parameters turn up as undocumented (DDP101), or, if they are used now, nobody notices that the entry
is out of date. A rule file with dead lines is soon not believed.

## Example

Bad: the module is called `spare`.

```toml
[[unused]]
params = ["sparse.*"]
reason = "kept so that old checkpoints load"
action = "allow"
```

Good: a name that the model has; or a pattern that is marked for the variants of the model that have it.

```toml
[[unused]]
params = ["spare.*"]
reason = "kept so that old checkpoints load"
action = "allow"
```

## What to do

Correct the pattern (the finding names the nearest thing in the model), delete it, or, if only some
builds of this checkpoint type have the parameters, set `optional = true` on the entry.

## Notes

Names are those of `named_parameters()`, without the `module.` that the DDP wrapper puts before them. In
a pattern `*`, `?` and `[...]` stay within one segment between dots, `**` stands for any number of
segments, and a module's name covers everything in it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from ddplint.analysis import Analysis
from ddplint.checks.base import Case, Example, Finding, Severity
from ddplint.checks.wording import quoted, rule_location, verb
from ddplint.rules import matches

CODE = "DDP103"
NAME = "unmatched-pattern"
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

_WRONG = """
[[unused]]
params = ["sparse.*"]
reason = "kept so that old checkpoints load"
action = "allow"
"""

BAD = (
    Example(_MODEL, rules=_WRONG),
    Example(_MODEL, rules=_WRONG.replace('["sparse.*"]', '["spare.*", "spare.bias", "spare.scale"]')),
    Example(_MODEL, rules=_WRONG.replace('"allow"', '"freeze"')),
)
_STRIPPED = _MODEL.replace("self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)", "self.used = nn.Linear(4, 4)")

GOOD = (
    Example(_MODEL, rules=_WRONG.replace("sparse", "spare")),
    Example(_STRIPPED, rules=_WRONG + "optional = true\n"),
    Example(_STRIPPED, rules=_WRONG.replace('"allow"', '"strip"')),
)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each entry that has patterns without a parameter."""
    names = [name for p in case.analysis.parameters for name in (p.name, *p.aliases)]
    for entry in case.entries:
        if entry.optional or entry.action == "strip" or case.rules is None:
            continue
        dead = [pattern for pattern in entry.params if not any(matches(pattern, name) for name in names)]
        if dead:
            message = f"{quoted(dead)} {verb(dead, 'names', 'name')} no parameter of the model"
            near = [hint for pattern in dead if (hint := _near(pattern, case.analysis))]
            fix = f"did you mean {quoted(near)}? else " if near else ""
            fix += f"delete {verb(dead, 'it', 'them')}, or set optional = true on the entry"
            location = rule_location(case.rules.path, entry)
            yield Finding(CODE, NAME, SEVERITY, message, (), location, fix)


def _near(pattern: str, analysis: Analysis) -> str | None:
    """``pattern`` with its part before the first wildcard put right, or None if nothing is like it."""
    parts = pattern.split(".")
    plain = next((i for i, part in enumerate(parts) if any(sign in part for sign in "*?[")), len(parts))
    known = {".".join(p.name.split(".")[:plain]): None for p in analysis.parameters}
    for near in difflib.get_close_matches(".".join(parts[:plain]), list(known), cutoff=0.8) if plain else []:
        if all(_like(one, other) for one, other in zip(parts, near.split("."), strict=False)):
            return ".".join([near, *parts[plain:]])
    return None


def _like(one: str, other: str) -> bool:
    return difflib.SequenceMatcher(None, one, other).ratio() >= 0.5
