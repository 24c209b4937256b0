"""A used parameter that the loss reaches, but not through what the wrapped forward returns.

## What it does

Reports trainable parameters that backward from the loss reaches and DDP's walk from forward's return value
does not. There are two causes. Either the loss uses the parameter outside of forward (a CRF's transitions, a
temperature, a margin head that forward returns as an object): then the place is where it is used, one finding
a function. Or forward returns an object that DDP can't look into: then there is one finding for the whole
output, and it names the type. The severity depends on the wrap, as the rule file declares it
(`[ddp] find_unused_parameters = true`) or as it is found in the files of `[ddp] source`: error where the flag is
on, info where it is off or the graph is static, warning where no wrap is known. Where the rehearsal shows that
the wrap fails, it is an error.

## Why it matters

DDP sees the tensors in forward's return value: a tensor, or lists, tuples, dicts and dataclasses of them. With
`find_unused_parameters=True` it marks what it does not reach from there as ready at once. When the gradient
comes after all, it raises "Expected to mark a variable ready only once", in the first backward. With an opaque
output that is every parameter of the model.

## Example

Bad, if the flag is on: the loss takes the transitions from the module, after forward has returned.

```python
def forward(self, x):
    return {"scores": self.head(x), "crf": self.crf}
```

```python
def loss(output):
    return output["crf"].score(output["scores"])
```

Good: forward computes what needs them.

```python
def forward(self, x):
    return self.crf.score(self.head(x))
```

## What to do

Compute the loss inside the wrapped forward, or make a part of the loss that forward returns from these
parameters. For an opaque output, make its class a dataclass (`transformers.ModelOutput` is a dict, and fine),
or return a dict or a tuple. If nothing is unused, the flag can be off, and then there is no search.

## Notes

What DDP looks into is `_find_tensors`, torch/nn/parallel/distributed.py. A method of the model that the loss
calls past forward (`model.module.decode(x)`) bypasses DDP in the same way. So does a backward that forward runs
itself: DDP takes no notice of its gradients, and does not average them. Parameters inside a re-entrant
checkpoint are DDP205.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddplint.analysis import Location, Parameter
from ddplint.checks.base import OFF, ON, Case, Example, Finding, Severity, grouped, unseen_severity
from ddplint.checks.wording import line, names, rehearsed, subject, verb

CODE = "DDP206"
NAME = "bypasses-forward"
SEVERITY: Severity = "error"

_CRF = """
import torch
from torch import nn


class Crf(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.transitions = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.eye(3))

    def score(self, scores):
        first = (scores + self.start).logsumexp(-1)
        return first.mean() - (scores @ self.transitions).mean()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.crf = nn.Linear(4, 3), Crf()

    def forward(self, x):
        return {"scores": self.head(x), "crf": self.crf}


def build():
    return Tagger()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output["crf"].score(output["scores"])
"""

_INSIDE = _CRF.replace('return {"scores": self.head(x), "crf": self.crf}', "return self.crf.score(self.head(x))").replace(
    'return output["crf"].score(output["scores"])', "return output"
)

_OPAQUE = """
import torch
from torch import nn


class Prediction:
    def __init__(self, scores):
        self.scores = scores


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return Prediction(self.head(self.body(x)))


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.scores.sum()
"""

_DATACLASS = _OPAQUE.replace("import torch\n", "from dataclasses import dataclass\n\nimport torch\n", 1).replace(
    "class Prediction:\n    def __init__(self, scores):\n        self.scores = scores\n",
    "@dataclass\nclass Prediction:\n    scores: torch.Tensor\n",
)

_DDP = """
[ddp]
find_unused_parameters = {}
"""

BAD = (
    Example(_CRF),
    Example(_CRF, rules=_DDP.format("true")),
    Example(_CRF, rules=_DDP.format("false")),
    Example(_OPAQUE),
    Example(
        _OPAQUE.replace(
            "return Prediction(self.head(self.body(x)))", 'return {"all": [Prediction(self.head(self.body(x)))]}'
        ).replace("output.scores", 'output["all"][0].scores')
    ),
)
GOOD = (Example(_INSIDE), Example(_DATACLASS))


def check(case: Case) -> Iterator[Finding]:
    """One finding for an opaque output, else one for each function outside forward that uses parameters."""
    past = [
        p
        for p in case.trainable
        if p.usage in ("always", "sometimes") and p.from_loss and not p.from_outputs and p.checkpoint is None
    ]
    opaque = case.analysis.opaque_output
    for group in [tuple(past)] if opaque and past else grouped(past, _function):
        location = _first(group, opaque)
        it, them = verb(group, "it", "them"), verb(group, "it is", "they are")
        where = f"{line(location)}: " if location else ""
        who = subject(group, case.analysis)
        if opaque:
            message = (
                f"forward returns a `{opaque}`, and DDP looks for tensors in tensors, lists, tuples, dicts and dataclasses "
                f"only: {who} {verb(group, 'looks', 'look')} unused to it, though {them} in the loss"
            )
            fix = f"make `{opaque}` a dataclass, or return a dict or a tuple"
        else:
            message = f"{where}the loss uses {who} here, outside the wrapped forward, where DDP does not find {it}"
            fix = f"use {it} inside forward, and return what is made of {it}"
        raises = f"with find_unused_parameters=True it marks {it} ready twice and raises"
        if case.outcome(ON) not in (None, "ready_twice"):  # as of a backward that forward itself has run
            raises = f"it does not expect {verb(group, 'its gradient', 'their gradients')}"
        message += f"; {raises}{rehearsed(case.analysis)}"
        if case.outcome(OFF) in (None, "ok"):
            fix += ", or wrap with find_unused_parameters=False"
        yield Finding(CODE, NAME, unseen_severity(case), message, names(group), location, fix)


def _function(parameter: Parameter) -> tuple[str, str]:
    where = parameter.bypass
    return (where.file, where.function) if where else ("", parameter.name)


def _first(group: Sequence[Parameter], opaque: str) -> Location | None:
    """Where the first of them is used past forward; for an opaque output, where the last one is used inside."""
    places = [p.bypass for p in group if p.bypass is not None]
    if not places:
        return None
    return places[-1] if opaque else min(places, key=lambda at: at.line)
