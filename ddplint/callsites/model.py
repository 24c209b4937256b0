"""What is found in source: wraps, what each says of DDP's flags, and the edit that would turn one off."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

State = Literal["on", "off", "conditional", "unknown"]
"""``conditional``: the source itself holds the condition; ``unknown``: the value comes from where it can't be followed."""

Form = Literal[
    "call",  # of torch's class
    "partial",  # functools.partial of any of the others
    "subclass",  # of torch's class, or of Lightning's strategy
    "accelerate",  # DistributedDataParallelKwargs
    "lightning",  # DDPStrategy, or its older name DDPPlugin
    "strategy-name",  # Lightning's names of strategies: "ddp_find_unused_parameters_true"
    "training-arguments",  # transformers' TrainingArguments and the classes derived from it
    "registry",  # dict(type="MMDistributedDataParallel")
    "class_path",  # LightningCLI's YAML
    "_target_",  # hydra's YAML
    "shell",  # an option on a command line
]


@dataclass(frozen=True, slots=True)
class Edit:
    """Characters ``start`` to ``end`` of a file's text, which are ``before``, become ``after``."""

    start: int
    end: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Setting:
    """What a wrap says of one flag.

    ``expression`` is its source in short, "" where the flag is not given. ``edit`` turns a literal that is on off;
    where the flag is on and there is none, ``kept`` says why.
    """

    state: State
    expression: str = ""
    edit: Edit | None = None
    kept: str = ""


@dataclass(frozen=True, slots=True)
class Wrap:
    """One place that wraps a model in DDP or settles how that will be done. ``line`` and ``column`` from 1."""

    file: str
    line: int
    column: int
    form: Form
    callee: str  # as the source spells it
    find_unused_parameters: Setting
    static_graph: Setting
    text: str = ""  # the source line, stripped


def combined(states: Collection[State]) -> State:
    """One state for a value that may be any of ``states``."""
    kinds = set(states)
    if len(kinds) == 1:
        return kinds.pop()
    return "conditional" if "conditional" in kinds or kinds >= {"on", "off"} else "unknown"


def short(text: str, width: int = 60) -> str:
    """Source on one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
