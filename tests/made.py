"""Analyses and rule files made by hand, for tests of what is done with them; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddplint.analysis import Analysis, Disagreement, Location, Parameter, Rehearsal, TraceRecord
from ddplint.callsites.model import Edit, Setting, State, Wrap
from ddplint.rules import DdpSettings, RuleFile, TargetSpec, UnusedRule

FILE = "/work/project/model.py"


def line(number: int, text: str = "") -> Location:
    """A place in the model's source."""
    return Location(FILE, number, "Net.forward", text)


def used(name: str, *, numel: int = 10, **more: Any) -> Parameter:
    """A trainable parameter that every path uses."""
    fields = {
        "aliases": (),
        "module": name.rpartition(".")[0],
        "module_type": "Linear",
        "shape": (numel,),
        "dtype": "float32",
        "bytes": 4 * numel,
        "trainable": True,
        "usage": "always",
    }
    return Parameter(name=name, numel=numel, **{**fields, **more})


def unused(name: str, at: int = 7, *, cause: str = "uncalled", usage: str = "never", **more: Any) -> Parameter:
    """A trainable parameter that line ``at`` leaves without any use."""
    place = {"location": line(at), "place": f"{FILE}:{at}", "why": f"`{name}` has a reason"}
    return used(name, **{**place, "cause": cause, "usage": usage, **more})


def frozen(name: str, **more: Any) -> Parameter:
    """A frozen parameter that no rule documents, so that its usage is not known."""
    return used(name, **{"trainable": False, "usage": None, **more})


def analysis(
    *parameters: Parameter, complete: bool = True, disagreements: Sequence[Disagreement] = (), **more: Any
) -> Analysis:
    """An analysis of these parameters."""
    record = trace(disagreements=tuple(disagreements), complete=complete)
    fields = {"target": "model.py:build", "torch_version": "2.13.0", "trace": record}
    return Analysis(parameters=parameters, **{**fields, **more})


SETTINGS = ("find_unused_parameters=False", "find_unused_parameters=True", "static_graph=True")


def rehearsal(off: str = "ok", on: str = "ok", static: str = "ok", **more: Any) -> Rehearsal:
    """A rehearsal with these outcomes."""
    outcomes = dict(zip(SETTINGS, (off, on, static), strict=True))
    fields = {"device": "meta", "iterations": 3, "ranks": 2, "seconds": 0.0456789, "details": {}}
    return Rehearsal(outcomes=outcomes, **{**fields, **more})


def trace(**more: Any) -> TraceRecord:
    """A trace of one path on meta, or of what ``more`` says."""
    fields = {"device": "meta", "device_reason": "", "paths": 1, "ranks": 1, "nodes": 12, "seconds": 0.123456}
    return TraceRecord(**{**fields, **more})


def wrap(flag: State = "on", *, line: int = 4, static: State = "off", edit: Edit | None = None, kept: str = "") -> Wrap:
    """A wrap in the training script; ``flag`` and ``static`` are what it says."""
    setting = Setting(flag, "" if flag == "off" else "x", edit, kept)
    return Wrap("/work/project/train.py", line, 9, "call", "DDP", setting, Setting(static), "model = DDP(model)")


def entry(*params: str, action: str = "allow", at: int = 12, **more: Any) -> UnusedRule:
    """A rule entry that starts in line ``at``."""
    return UnusedRule(**{"params": params, "reason": "a reason", "action": action, "line": at, **more})


def rules(
    *entries: UnusedRule, path: str = "/work/project/rules/hybrid.toml", flag: bool | None = None, static: bool | None = None
) -> RuleFile:
    """A rule file with these entries; ``flag`` and ``static`` are what it declares under ``[ddp]``."""
    return RuleFile(
        path=path,
        name="hybrid",
        description="",
        detect=(),
        target=TargetSpec(factory="model.py:build"),
        ddp=DdpSettings(flag, static),
        unused=entries,
    )
