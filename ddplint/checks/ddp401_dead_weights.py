"""A checkpoint file carries weights for parameters that never train.

## What it does

Only under `ddplint ckpt FILE`. Reports the tensors of the file that load into parameters which no path gives a gradient,
with their bytes, what the optimizer's state in the file holds for them, and what they cost while training: AdamW's two
moments where it makes them, and their place in DDP's all-reduce where they require grad.

## Why it matters

They are read, moved to every GPU and written into each new checkpoint, and none of them ever changes what the model
learns. In a model that inherits its weights from pretraining that can be a third of the file.

## Example

Bad: the file has a `decoder`, and finetuning does not call it.

```python
def forward(self, x):
    return self.encoder(x)
```

Good: the loss is made of all that is loaded.

```python
def forward(self, x):
    return self.decoder(self.encoder(x))
```

## What to do

`ddplint strip FILE --ckpt NAME -o OUT` writes the file without what the rule file documents as never used, and proves
that the model computes the same. Let the factory leave the module out, or freeze it, so that nothing else pays for it.

## Notes

AdamW makes its moments when it first sees a gradient, so a parameter whose `.grad` stays None costs none
(`_init_group` in torch/optim/adamw.py); where something fills in zeros, it costs twice its size. The all-reduce is what
DDP's buckets hold for those that require grad: they are reduced as zeros.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checkpoint.table import Row, total
from ddplint.checks.base import Case, Example, Finding, Severity, by_place
from ddplint.checks.wording import because, count, names, percent, roots, short, size, verb

CODE = "DDP401"
NAME = "dead-weights"
SEVERITY: Severity = "warning"

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
_USED = _MODEL.replace("self.encoder(x)", "self.decoder(self.encoder(x))")
_KEYS = {
    f"{module}.{name}": shape for module in ("encoder", "decoder") for name, shape in (("weight", (4, 4)), ("bias", (4,)))
}

BAD = (Example(_MODEL, keys=_KEYS),)
GOOD = (Example(_USED, keys=_KEYS),)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each place that leaves parameters without a gradient which the file has weights for."""
    if case.stored is None:
        return
    first = {name: p.name for p in case.analysis.parameters for name in (p.name, *p.aliases)}
    held: dict[str, list[Row]] = {}
    for row in case.stored.dead:
        held.setdefault(first[row.name], []).append(row)
    whole = total(row for row in case.stored.rows if row.key)
    for group in by_place(p for p in case.analysis.parameters if p.name in held):
        amount = total(row for p in group for row in held[p.name])
        modules = short(roots(group, case.analysis))
        message = (
            f"{count(len(group), 'parameter')} of {modules} never {verb(group, 'trains', 'train')}, and {case.stored.file} "
            f"has {size(amount)} for {verb(group, 'it', 'them')} ({percent(amount, whole)} of its weights): {because(group)}"
        )
        fix = f"strip {verb(group, 'it', 'them')} from the file (`ddplint strip`), and do not build {modules}, or freeze it"
        yield Finding(CODE, NAME, SEVERITY, message, names(group), group[0].location, fix)
