"""A checkpoint file has tensors that the model has no place for.

## What it does

Only under `ddplint ckpt FILE`. Reports keys of the file that no parameter and no persistent buffer of the model has, after
`[checkpoint.rename]`; one finding for all of them. Tensors of another shape than the model's are an error of their own:
`load_state_dict` refuses them whatever `strict` says.

## Why it matters

`load_state_dict(strict=False)` passes over them in silence. That is right for the heads of another task, and wrong for an
encoder whose module was renamed: it then trains from scratch, and nothing says so.

## Example

Bad: the file calls the module `body`, the model `encoder`.

```python
self.encoder = nn.Linear(4, 4)
```

Good: the rule file says what the loader makes of the name.

```toml
[checkpoint.rename]
"body." = "encoder."
```

## What to do

Look for a module that is here under another name: DDP403 lists what the file does not fill. If the loader renames keys,
write that under `[checkpoint.rename]`; `false` there says that it leaves a prefix out on purpose.

## Notes

Prefixes that wrappers put before every key (`module.` of DDP, `_orig_mod.` of `torch.compile`) are left out by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checkpoint.table import total
from ddplint.checks.base import Case, Example, Finding, Severity
from ddplint.checks.wording import count, short, size, verb

CODE = "DDP402"
NAME = "dropped-keys"
SEVERITY: Severity = "info"

_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 4)

    def forward(self, x):
        return self.encoder(x)


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""
_RENAME = """
[checkpoint.rename]
"body." = "encoder."
"""

BAD = (
    Example(_MODEL, keys={"body.weight": (4, 4), "body.bias": (4,)}),
    Example(_MODEL, keys={"encoder.weight": (8, 4), "encoder.bias": (4,)}),
)
GOOD = (
    Example(_MODEL, keys={"encoder.weight": (4, 4), "encoder.bias": (4,)}),
    Example(_MODEL, rules=_RENAME, keys={"body.weight": (4, 4), "body.bias": (4,)}),
)


def check(case: Case) -> Iterator[Finding]:
    """One finding for all keys without a place, one for all of another shape."""
    if case.stored is None:
        return
    dropped, mismatched = case.stored.of("dropped"), case.stored.of("mismatched")
    if dropped:
        message = (
            f"{count(len(dropped), 'tensor')} of {case.stored.file} ({size(total(dropped))}) {verb(dropped, 'is', 'are')} "
            f"in no parameter or buffer of the model: {short(row.key for row in dropped)}"
        )
        fix = "if the loader renames them, say so under [checkpoint.rename]; false there leaves a prefix out on purpose"
        yield Finding(CODE, NAME, SEVERITY, message, (), None, fix)
    if mismatched:
        shown = ", ".join(f"`{row.name}` {list(row.shape)} for {list(row.wanted or ())}" for row in mismatched[:3])
        more = f" and {len(mismatched) - 3} more" if len(mismatched) > 3 else ""
        message = (
            f"{count(len(mismatched), 'tensor')} of {case.stored.file} {verb(mismatched, 'has', 'have')} another shape than "
            f"the model's: {shown}{more}"
        )
        fix = "load_state_dict refuses them, whatever strict says: build the model for this file, or leave the keys out"
        yield Finding(CODE, NAME, "error", message, tuple(row.name for row in mismatched), None, fix)
