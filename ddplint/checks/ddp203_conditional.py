"""A parameter that some paths of the step use and others do not, and no rule says so.

## What it does

Reports trainable parameters that the loss needs on some paths only: behind a branch on a tensor's
value, on a random draw (layer drop, a drawn depth), on the kind of batch, or on a counter. The place is
what decides it, with what each answer there leaves unused; where no line of the code decides (the kind
of batch, a seed, a step), it is where they were created. An entry with `when = "sometimes"` documents
them. One finding a place. What differs between ranks is DDP204.

## Why it matters

A set that varies cannot be frozen, so this is where `find_unused_parameters=True` is really needed:
with the flag off, the first step that leaves a parameter out makes the next forward raise, perhaps
hours into a run, when a batch without a positive example comes along; `static_graph=True` fails too. If
ranks take different paths, and one uses no parameter at all, the others wait for it for ever. It has to
be a decision, not a surprise.

## Example

Bad: the refinement is skipped whenever no score is positive, which depends on the batch.

```python
def forward(self, x):
    y = self.body(x)
    if y.sum() > 0:
        y = self.refine(y)
    return y
```

Good: the computation does not depend on the answer; masked out, it still has a gradient, of zeros.

```python
def forward(self, x):
    y = self.body(x)
    return torch.where(y.sum() > 0, self.refine(y), y)
```

## What to do

Make the set static: compute both sides and mask, or add `0 * parameter.sum()` on the path that leaves
it out. Or accept it: wrap with `find_unused_parameters=True` and document the parameters with `when =
"sometimes"`.

## Notes

`evidence` in the JSON report says how it is known: `observed`, if example inputs, seeds or steps took
both ways; `possible`, if a way was taken only because the answer was forced. A parameter that is
documented as never used and is used on some path is also a stale rule (DDP102), which points at the
entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddplint.analysis import Parameter
from ddplint.checks.base import ON, Case, Example, Finding, Severity, by_place, grouped
from ddplint.checks.wording import line, names, place, rule_location, subject, toml_entry, verb, who

CODE = "DDP203"
NAME = "conditional"
SEVERITY: Severity = "error"

_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.refine = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.body(x)
        if y.sum() > 0:
            y = self.refine(y)
        return y


def build():
    torch.manual_seed(0)
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def variants():
    return [inputs, lambda: ((-torch.ones(2, 4),), {})]


def loss(output):
    return output.sum()
"""

_ENTRY = """
[[unused]]
params = ["refine.*"]
reason = "refinement runs only on batches with a positive score"
action = "allow"
when = "sometimes"
"""

BAD = (Example(_MODEL),)
GOOD = (
    Example(
        _MODEL.replace(
            "        if y.sum() > 0:\n            y = self.refine(y)\n        return y\n",
            "        return torch.where(y.sum() > 0, self.refine(y), y)\n",
        )
    ),
    Example(_MODEL, rules=_ENTRY),
)


_ANSWERS = 3  # said before "and N more"


def check(case: Case) -> Iterator[Finding]:
    """One finding for each place that decides over undocumented parameters; what the rank decides is DDP204's."""
    for group in by_place(p for p in case.undocumented("sometimes") if p.decided_by != "rank"):
        location = group[0].location
        observed = any(p.evidence == "observed" for p in group)
        seen = "observed" if observed else "possible: seen under forced answers"
        said = f"{_sentence(group, case)} ({seen})"
        decides = location is not None and group[0].decided_by in ("", "value", "draw")
        if location is not None:
            said = f"{line(location)}: {said}" if decides else f"{said}; created at {place(location)}"
        entry = case.covering(group[0])
        if case.rules and entry:
            document = f'write when = "sometimes" on the entry at {place(rule_location(case.rules.path, entry))}'
        else:
            document = f"document {verb(group, 'it', 'them')}:\n{toml_entry(group, case.analysis)}"
        always = f"use {verb(group, 'it', 'them')} on every path (mask instead of branching)"
        outcome = case.outcome(ON)
        if outcome in (None, "ok"):
            tried = " (rehearsed: ok)" if outcome else ""
            fix = f"{always}, or wrap with find_unused_parameters=True{tried} and {document}"
        else:
            fix = f"{always}: with find_unused_parameters=True DDP fails as well ({outcome}); if that is settled, {document}"
        yield Finding(CODE, NAME, SEVERITY, said, names(group), location, fix)


def _sentence(group: Sequence[Parameter], case: Case) -> str:
    """What each answer at the place leaves unused."""
    alike = grouped(group, lambda p: p.why)
    if len(alike) == 1:
        return _unused(group, subject(group, case.analysis))
    shown = alike if len(alike) <= _ANSWERS + 1 else alike[:_ANSWERS]
    told = [_unused(part, who(part, case.analysis)) for part in shown]
    if len(shown) < len(alike):
        told.append(f"and {len(alike) - len(shown)} answers more")
    return f"{subject(group, case.analysis)} are used on some paths only: {'; '.join(told)}"


def _unused(group: Sequence[Parameter], named: str) -> str:
    are, why = verb(group, "is", "are"), group[0].why
    condition = why.removeprefix("unused ")
    if condition in ("when true", "when false") and group[0].location and "not " in group[0].location.text:
        condition = condition.replace("when", "when the value that is read is")  # not the whole condition
    if condition.startswith("when "):
        return f"{condition}, {named} {are} unused"
    return f"{named} {are} {why}" if condition != why else f"{named} {are} used on some paths only"
