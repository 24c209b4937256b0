"""The flag is on, and DDP runs as well with it off.

## What it does

Reports a wrap with `find_unused_parameters=True` where every path uses the same parameters, every path was
traced, and DDP with the flag off ran in the rehearsal: nothing trainable is unused, or what is unused is frozen.
The wrap is one that is found in the files of `[ddp] source`, or the one that the rule file declares
(`[ddp] find_unused_parameters = true`). `ddplint wraps --ckpt NAME` reports the same for any source.

## Why it matters

With the flag on DDP walks the autograd graph in every step and reduces a map of what was used. It also stays
quiet when a layer is disconnected by mistake: with the flag off, that is an error in the second step.

## Example

Reported, if everything that is trainable is used: the search is on.

```toml
[ddp]
find_unused_parameters = true
```

Not reported:

```toml
[ddp]
find_unused_parameters = false
```

## What to do

Turn it off: `ddplint fix --ckpt NAME --diff` shows the edit, `ddplint fix --ckpt NAME` makes it. An expression, or a
value that has other readers, is left to you.

## Notes

What counts is the model as the target's factory returns it: freeze there what the training script freezes before
the wrap. With `static_graph=True` DDP does not search, whatever the flag says, and nothing is reported
(`dynamic_graph_find_unused`, torch/csrc/distributed/c10d/reducer.hpp).
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checks.base import ON, Case, Example, Finding, Known, Severity
from ddplint.checks.wording import line, rehearsed

CODE = "DDP301"
NAME = "needless-find-unused"
SEVERITY: Severity = "warning"

_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.used(self.spare(x))


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""

_UNUSED = _MODEL.replace("self.used(self.spare(x))", "self.used(x)")
_FROZEN = _UNUSED.replace("return Net()", "model = Net()\n    model.spare.requires_grad_(False)\n    return model")

_DDP = """
[ddp]
find_unused_parameters = {}
"""

_ENTRY = """
[[unused]]
params = ["spare.*"]
reason = "kept so that old checkpoints load"
action = "{}"
"""

BAD = (
    Example(_MODEL, rules=_DDP.format("true")),
    Example(_FROZEN, rules=_DDP.format("true") + _ENTRY.format("freeze")),
)
GOOD = (
    Example(_MODEL, rules=_DDP.format("false")),
    Example(_MODEL, rules=_DDP.format("true") + "static_graph = true\n"),
    Example(_UNUSED, rules=_DDP.format("true") + "static_graph = true\n" + _ENTRY.format("allow")),
)


def check(case: Case) -> Iterator[Finding]:
    """One finding for each wrap with the flag on."""
    if case.flag != "not-needed" or not case.static:
        return
    for known in case.known:
        if known.setting == ON:
            where = f"{line(known.location)}: " if known.location else ""
            message = (
                f"{where}find_unused_parameters is on and not needed: every path uses the same parameters, and DDP runs "
                f"with the flag off{rehearsed(case.analysis)}"
            )
            yield Finding(CODE, NAME, SEVERITY, message, (), known.location, _fix(known))


def _fix(known: Known) -> str:
    if known.wrap is None:
        return "wrap with find_unused_parameters=False, and declare that under [ddp]"
    setting = known.wrap.find_unused_parameters
    if setting.edit is not None:
        return "turn it off; `ddplint fix` does it"
    return f"turn it off; not by `ddplint fix`, for {setting.kept}"
