"""What the two text reports show on request: the statistics, the paths that differ, every parameter. Rows of text."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ddplint.analysis import Parameter
from ddplint.checks.wording import amount, percent, size
from ddplint.report.model import Report, Result


def by_code(result: Result) -> list[tuple[str, str, str]]:
    """Each code that was found: "DDP101 undocumented-unused (error)", its findings, the parameters they are about."""
    found = Counter(f"{finding.code} {finding.name} ({finding.severity})" for finding in result.findings)
    about: dict[str, set[str]] = {}
    for finding in result.findings:
        about.setdefault(f"{finding.code} {finding.name} ({finding.severity})", set()).update(finding.parameters)
    return [(name, f"{number:,}", f"{len(about[name]):,}") for name, number in sorted(found.items())]


def parts(result: Result) -> list[tuple[str, tuple[Parameter, ...]]]:
    """The model's parameters by what becomes of them: used, unused by each cause, frozen. None is in two of these."""
    groups: dict[str, list[Parameter]] = {}
    for parameter in result.trainable:
        name = f"never: {parameter.cause or 'unknown'}" if parameter.usage == "never" else "used on some paths"
        groups.setdefault("used on every path" if parameter.usage == "always" else name, []).append(parameter)
    groups["frozen"] = [p for p in result.analysis.parameters if not p.trainable]
    order = sorted(groups, key=lambda name: (name == "frozen", name.startswith("never"), name != "used on every path"))
    return [(name, tuple(groups[name])) for name in order if groups[name]]


def by_cause(result: Result) -> list[tuple[str, str, str, str, str]]:
    """Each of ``parts`` with its parameters, weights, bytes and share of the trainable weights ("" of frozen ones)."""
    whole = sum(p.numel for p in result.trainable)
    rows = []
    for name, group in parts(result):
        numel = sum(p.numel for p in group)
        share = percent(numel, whole) if group[0].trainable else ""
        rows.append((name, f"{len(group):,}", amount(numel), size(sum(p.bytes for p in group)), share))
    return rows


def paths(report: Report, result: Result) -> list[str]:
    """One path for each set of used parameters that was found on a rank; none are known without a rehearsal."""
    rehearsal = result.analysis.rehearsal
    return [_path(report, plan) for plan in rehearsal.plans] if rehearsal else []


def _path(report: Report, plan: dict[str, Any]) -> str:
    """A plan in words: "rank 0, inputs 1, seed 0; forced: False at model.py:88 in Net.forward"."""
    start = f"rank {plan['rank']}, inputs {plan['inputs'] + 1}, seed {plan['seed']}"
    if plan.get("after"):
        start += f", after {plan['after']} steps"
    forced = [
        f"{answer} at {report.relative(fork['file'])}:{fork['line']} in {fork['function']}"
        for fork, answer in plan["answers"]
    ]
    return f"{start}; {'forced: ' + ', '.join(forced) if forced else 'nothing forced'}"


def every_parameter(report: Report, result: Result) -> list[tuple[str, ...]]:
    """Each parameter in the model's order: name, shape, usage, evidence and cause, place, whether a rule documents it."""
    return [(p.name, shape(p), becomes(p), _place(report, p), _known(result, p)) for p in result.analysis.parameters]


def shape(parameter: Parameter) -> str:
    """ "[64, 128] float32"."""
    return f"[{', '.join(map(str, parameter.shape))}] {parameter.dtype.removeprefix('torch.')}"


def becomes(parameter: Parameter) -> str:
    """What becomes of a parameter: "never used (discarded, observed)"."""
    if parameter.usage is None:
        return "frozen"
    cold = "" if parameter.trainable else "frozen, "
    if parameter.usage == "always":
        return f"{cold}always used"
    return f"{cold}{parameter.usage} used ({parameter.cause}, {parameter.evidence})"


def _place(report: Report, parameter: Parameter) -> str:
    return f"{report.relative(parameter.location.file)}:{parameter.location.line}" if parameter.location else ""


def _known(result: Result, parameter: Parameter) -> str:
    entry = result.case.documented_by(parameter) if parameter.usage in ("never", "sometimes") else None
    return f"documented [{entry.action}]" if entry else ""
