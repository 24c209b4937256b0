"""The model has parameters that the checkpoint file does not fill.

## What it does

Only under `ddplint ckpt FILE`. Reports parameters and persistent buffers of the model for which the file has no tensor,
after `[checkpoint.rename]`; one finding for all of them.

## Why it matters

They keep the values that the factory gave them. For a new task head that is meant. For a layer of the encoder it means
that finetuning starts from noise in the middle of a pretrained model, and only the quality of the result tells.

## Example

Bad: nothing in the file is called `encoder`.

```python
self.encoder = nn.Linear(4, 4)
```

Good: all that the model holds is in the file.

```python
self.encoder = nn.Linear(4, 4)
self.head = nn.Linear(4, 2)
```

## What to do

Read the list. A module that should be pretrained is in the file under another name (DDP402 lists what has no place), or
the file is of another checkpoint type.

## Notes

A parameter with several names (tied weights, shared modules) is filled by any of them. Buffers that `state_dict` leaves
out (`persistent=False`) are not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checkpoint.table import total
from ddplint.checks.base import Case, Example, Finding, Severity
from ddplint.checks.wording import count, short, size, verb

CODE = "DDP403"
NAME = "fresh-parameters"
SEVERITY: Severity = "info"

_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.encoder(x))


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""
_HEAD = {"head.weight": (2, 4), "head.bias": (2,)}

BAD = (Example(_MODEL, keys=_HEAD),)
GOOD = (Example(_MODEL, keys={"encoder.weight": (4, 4), "encoder.bias": (4,), **_HEAD}),)


def check(case: Case) -> Iterator[Finding]:
    """One finding for all that the file does not fill."""
    if case.stored is None:
        return
    fresh = case.stored.of("fresh")
    if fresh:
        held = {p.name for p in case.analysis.parameters}
        parameters = tuple(row.name for row in fresh if row.name in held)
        buffers = f", {count(len(fresh) - len(parameters), 'buffer')} among them" if len(fresh) > len(parameters) else ""
        message = (
            f"{count(len(fresh), 'tensor')} of the model ({size(total(fresh))}{buffers}) {verb(fresh, 'is', 'are')} not in "
            f"{case.stored.file}: {short(row.name for row in fresh)}"
        )
        fix = "for a new head that is meant; what should be pretrained is in the file under another name, or in another file"
        yield Finding(CODE, NAME, SEVERITY, message, parameters, None, fix)
