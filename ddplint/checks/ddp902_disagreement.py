"""Three ways to the answer say different things about a parameter, and no known kind explains it.

## What it does

ddplint answers "does the loss reach this parameter" three times: in the graph it recorded, in the graph
that autograd built in the same run, and by a real backward, after which `.grad` is None or not. Kinds
of difference that are understood (a custom `autograd.Function` or a hook that gives no gradient, a
re-entrant checkpoint) are settled by the backward. Every other difference is reported, one finding a
kind.

## Why it matters

Backward is the truth of *whether* a gradient arrives. But cause and line in every report come from the
recorded graph. If that graph has not seen what happened, an explanation is wrong or a parameter is in
the wrong list, and a tool that hid the difference would give the false all-clear that it was made to
prevent.

## Example

Bad: a hook drives autograd's engine itself, past `backward`. `hidden` gets a gradient, and it is in neither
graph of the loss.

```python
y, hidden = self.head(x), self.hidden(x)
engine = torch.autograd.Variable._execution_engine
y.register_hook(lambda g: engine.run_backward((hidden,), (g,), False, False, (), True, accumulate_grad=True))
return y
```

Good: what is to be trained is in the loss, and its backward is the only one.

```python
return self.head(x) + self.hidden(x)
```

## What to do

Look at the parameter's way with `ddplint why NAME`: if it ends too early, the recorder lost sight
there. The usual reasons are code that drives autograd's engine itself (some pipeline schedules do), and C++
extensions. For the verdict, go by the backward. If neither is there, it is a fault in ddplint: report it,
with the target.

## Notes

Where no backward could be run on the trace's device, the finding says so and names the other two
answers.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.analysis import Disagreement
from ddplint.checks.base import Case, Example, Finding, Severity
from ddplint.checks.wording import names, subject

CODE = "DDP902"
NAME = "disagreement"
SEVERITY: Severity = "error"

_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y, hidden = self.head(x), self.hidden(x)
        engine = torch.autograd.Variable._execution_engine
        y.register_hook(lambda g: engine.run_backward((hidden,), (g,), False, False, (), True, accumulate_grad=True))
        return y


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""

_BEGIN = "        y, hidden = self.head(x), self.hidden(x)\n"
_REST = _MODEL.partition(_BEGIN)[2].partition("\n\n")[0]

BAD = (Example(_MODEL),)
GOOD = (Example(_MODEL.replace(_BEGIN + _REST, "        return self.head(x) + self.hidden(x)\n")),)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each kind of disagreement, kinds and parameters in the model's order."""
    kinds: dict[tuple[bool, bool, bool | None], list[Disagreement]] = {}
    for disagreement in case.analysis.trace.disagreements:
        kind = (disagreement.graph, disagreement.autograd, disagreement.backward)
        kinds.setdefault(kind, []).append(disagreement)
    known = {p.name: p for p in case.analysis.parameters}
    for (graph, autograd, backward), members in kinds.items():
        group = [known[member.name] for member in members if member.name in known]
        said = {True: "used", False: "unused", None: "could not be run on this device"}
        message = (
            f"the answers about {subject(group, case.analysis)} differ: recorded graph {said[graph]}, "
            f"autograd's graph {said[autograd]}, backward {said[backward]}"
        )
        fix = (
            f"see where the recorder lost sight with `ddplint why {members[0].name}`; go by the backward, "
            "and report it if no code that drives autograd itself explains it"
        )
        location = group[0].location if group else None
        yield Finding(CODE, NAME, SEVERITY, message, names(members), location, fix)
