"""A used parameter inside a re-entrant checkpoint, where DDP's search for unused parameters does not look.

## What it does

Reports trainable parameters whose gradient comes only from a backward inside another one: that of
`torch.utils.checkpoint` with `use_reentrant=True`, or of a custom `autograd.Function` that calls backward
itself. The place is the checkpoint. One finding a checkpoint. Its severity depends on the wrap, as the rule
file declares it (`[ddp] find_unused_parameters = true`) or as it is found in the files of `[ddp] source`: error
where the flag is on, info where it is off or the graph is static, warning where no wrap is known. Where the
rehearsal shows that the wrap fails, it is an error.

## Why it matters

With `find_unused_parameters=True` DDP walks autograd's graph from what forward returns. A re-entrant
checkpoint is one node in that graph: the operations inside are recorded only in backward, so their
parameters look unused and are marked ready at once. When their gradients come after all, DDP raises
"Expected to mark a variable ready only once". Nothing about the parameters is wrong: they are used, and get
their gradients. It is the pair of the flag and the checkpoint that fails, and people who turn the flag on to
get rid of one error meet the other.

## Example

Bad, if the flag is on: the block is checkpointed in the re-entrant way.

```python
return self.head(checkpoint(self.block, x, use_reentrant=True))
```

Good: the other implementation, whose operations are in the graph.

```python
return self.head(checkpoint(self.block, x, use_reentrant=False))
```

## What to do

Pass `use_reentrant=False`. Libraries often have a switch: in transformers it is
`gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})`. Or wrap with the flag
off, once nothing is unused; or, if what is used never changes, with `static_graph=True`, which is made for
this.

## Notes

A block that is checkpointed and run twice in one step, or shared with code outside the checkpoint, is marked
twice with the flag off as well. That is an error here whatever is declared. The walk is
`Reducer::search_unused_parameters`, the second mark `Reducer::mark_variable_ready`,
torch/csrc/distributed/c10d/reducer.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checks.base import OFF, STATIC, Case, Example, Finding, Severity, grouped, unseen_severity
from ddplint.checks.wording import line, names, rehearsed, subject, verb

CODE = "DDP205"
NAME = "reentrant-checkpoint"
SEVERITY: Severity = "error"

_MODEL = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        x = self.stem(x)
        return self.head(checkpoint(self.block, x, use_reentrant=True))


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""

_DDP = """
[ddp]
find_unused_parameters = {}
"""

BAD = (
    Example(_MODEL),
    Example(_MODEL, rules=_DDP.format("true")),
    Example(_MODEL, rules=_DDP.format("false")),
)
GOOD = (Example(_MODEL.replace("use_reentrant=True", "use_reentrant=False")),)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each checkpoint that hides used parameters."""
    hidden = [p for p in case.trainable if p.checkpoint is not None]
    for group in grouped(hidden, lambda p: p.checkpoint):
        location = group[0].checkpoint
        if location is None:
            continue
        message = (
            f"{line(location)}: {subject(group, case.analysis)} {verb(group, 'is', 'are')} used inside a re-entrant "
            "checkpoint, where DDP's search for unused parameters does not look; with find_unused_parameters=True it "
            f"marks {verb(group, 'it', 'them')} ready twice and raises{rehearsed(case.analysis)}"
        )
        fix = "pass use_reentrant=False to the checkpoint"
        if case.outcome(OFF) in (None, "ok"):
            fix += ", or wrap with find_unused_parameters=False"
        if case.outcome(STATIC) == "ok":
            fix += ", or with static_graph=True (rehearsed: ok)"
        yield Finding(CODE, NAME, unseen_severity(case), message, names(group), location, fix)
