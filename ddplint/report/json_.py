"""The JSON report, for programs: a contract, so every key is always there, null where there is no answer."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from ddplint import __version__
from ddplint.analysis import Location, Parameter
from ddplint.report.model import Report, Result

SCHEMA_VERSION = 1


def render(report: Report) -> str:
    """``report`` as JSON, indented; the same values in the same order on every run."""
    return json.dumps(document(report), indent=2)


def document(report: Report) -> dict[str, Any]:
    """``report`` as JSON-ready dictionaries and lists."""
    torch = next((result.analysis.torch_version for result in report.results), None)
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "ddplint", "version": __version__, "torch": torch},
        "results": [_result(report, result) for result in report.results],
    }


def _result(report: Report, result: Result) -> dict[str, Any]:
    analysis, trace, rehearsal = result.analysis, result.analysis.trace, result.analysis.rehearsal
    never = result.with_usage("never")
    return {
        "ckpt": result.ckpt,
        "target": report.target(result),
        "verdict": {
            "usage": result.usage,
            "find_unused_parameters": result.flag,
            "ddp": dict(rehearsal.outcomes) if rehearsal else None,
        },
        "counts": {
            "trainable": len(result.trainable),
            "frozen": len(analysis.parameters) - len(result.trainable),
            "always": len(result.with_usage("always")),
            "sometimes": len(result.with_usage("sometimes")),
            "never": len(never),
            "never_numel": sum(p.numel for p in never),
            "never_bytes": sum(p.bytes for p in never),
        },
        "unused": [_unused(report, result, parameter) for parameter in analysis.unused()],
        "findings": [
            {
                "code": finding.code,
                "name": finding.name,
                "severity": finding.severity,
                "message": finding.message,
                "parameters": list(finding.parameters),
                "location": _location(report, finding.location),
                "fix": finding.fix,
            }
            for finding in result.findings
        ],
        "trace": {
            "device": trace.device,
            "paths": trace.paths,
            "ranks": trace.ranks,
            "nodes": trace.nodes,
            "seconds": round(trace.seconds, 3),
            "agrees_with_autograd": not trace.disagreements,
            "adapter": analysis.adapter or None,
        },
        "rehearsal": {
            "device": rehearsal.device,
            "iterations": rehearsal.iterations,
            "ranks": rehearsal.ranks,
            "seconds": round(rehearsal.seconds, 3),
        }
        if rehearsal
        else None,
        **({"base": asdict(result.base)} if result.base is not None else {}),  # with --base only
    }


def _unused(report: Report, result: Result, parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "usage": parameter.usage,
        "evidence": parameter.evidence,
        "cause": parameter.cause,
        "module": parameter.module,
        "numel": parameter.numel,
        "bytes": parameter.bytes,
        "documented": result.case.documented_by(parameter) is not None,
        "location": _location(report, parameter.location),
        "why": parameter.why,
    }


def _location(report: Report, location: Location | None) -> dict[str, Any] | None:
    return None if location is None else {"file": report.relative(location.file), "line": location.line}
