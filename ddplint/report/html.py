"""The page: one self-contained HTML file, which opens from disk without a network.

The verdict is written here; the rest of the page is data, which ``page/page.js`` shows. Nothing in the data can end the
script element it stands in, ``page.js`` puts text into the page as text only, and the content security policy lets the
browser run the scripts of this file and load nothing. Times are left out: the same findings give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import string
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from ddplint import __version__
from ddplint.analysis import Location, Parameter
from ddplint.checks.base import Finding, Severity
from ddplint.checks.wording import count, percent, size
from ddplint.errors import DdplintError
from ddplint.report.model import Report, Result
from ddplint.report.text import advice, unused

AROUND = 2  # source lines shown before and after the one that is meant

STATUSES = {
    "dead": "unused",
    "documented": "unused, documented",
    "sometimes": "used on some paths",
    "used": "used",
    "frozen": "frozen",
}
"""What a parameter is, for a reader: what is wrong comes first. With rules, "dead" is said to be undocumented."""

_OUTCOMES = {
    "ok": "runs",
    "reduction_error": "fails: reduction error",
    "ready_twice": "fails: marked ready twice",
    "hang": "hangs",
}
_GOOD, _BAD = "\N{CHECK MARK}", "\N{MULTIPLICATION X}"
_SIGNS: dict[Severity, str] = {"error": _BAD, "warning": "!", "info": "i"}


def ready() -> None:
    """Raise DdplintError if plotly, which brings the tree map's JavaScript, is not installed."""
    _plotly()


def render(report: Report) -> str:
    """``report`` as a page. Raises DdplintError if plotly is not installed."""
    theme, plotly, script = _file("theme.js"), _plotly(), _file("page.js")
    page = string.Template(_file("page.html"))
    return page.substitute(
        policy=escape(_policy(theme, plotly, script)),
        title=escape(f"ddplint: {', '.join(report.title(result) for result in report.results)}"),
        theme=theme,
        style=_file("page.css"),
        tool=escape(_tool(report)),
        headline=escape(_headline(report)),
        verdicts="".join(_verdict(report, result, number) for number, result in enumerate(report.results)),
        findings="".join(_findings(report)),
        data=embedded(document(report)),
        plotly=plotly,
        script=script,
    )


def embedded(data: Any) -> str:
    """``data`` as JSON that may stand in a script element: nothing in it is a tag, a comment or an entity."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise DdplintError(
            "the page's tree map needs plotly, which is not installed",
            where="--format html",
            fix="pip install 'ddplint[html]'",
        ) from None
    script: str = get_plotlyjs()
    return script


@cache
def _file(name: str) -> str:
    return resources.files("ddplint.report").joinpath("page", name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    """A content security policy: these scripts run, no other; nothing is loaded from anywhere."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:"


# ---------------------------------------------------------------------- the verdict, as HTML


def _tool(report: Report) -> str:
    torch = next((result.analysis.torch_version for result in report.results), "")
    return f"ddplint {__version__}" + (f", torch {torch}" if torch else "")


def _headline(report: Report) -> str:
    """The verdict on all results, in one sentence."""
    results = report.results
    failing = [report.title(result) for result in results if result.fails]
    if len(results) == 1:
        return f"{report.title(results[0])} {'fails' if failing else 'passes'}"
    if not failing:
        return f"All {len(results)} checkpoint types pass" if results else "Nothing was checked"
    verb = "fails" if len(failing) == 1 else "fail"
    return f"{len(failing)} of {len(results)} checkpoint types {verb}: {', '.join(failing)}"


def _verdict(report: Report, result: Result, number: int) -> str:
    title, target = report.title(result), report.target(result)
    found = Counter(finding.severity for finding in result.findings)
    faults = [count(found[severity], severity) for severity in ("error", "warning") if found[severity]]
    kind = "error" if found["error"] else "warning" if found["warning"] else "pass"
    sign = _GOOD if kind == "pass" else _SIGNS["error" if kind == "error" else "warning"]
    said = unused(result)
    parts = [
        f'<article class="card {kind}" aria-labelledby="verdict-{number}">',
        f'<header><h3 id="verdict-{number}">{escape(title)}</h3>',
        f'<span class="badge {kind}"><span aria-hidden="true">{sign}</span> {escape(", ".join(faults) or "passes")}</span>',
        "</header>",
        f'<p class="target">{escape(target)}</p>' if target != title else "",
        f'<p class="lead">{escape(said[0].upper() + said[1:])}.</p>',
        f'<div class="facts"><div>{_meter(result)}</div><div>{_outcomes(result)}</div></div>',
        f'<p class="advice">{_prose(advice(result))}</p>',
        f'<p class="traced">{escape(_traced(result))}</p>',
        "</article>",
    ]
    return "".join(parts)


def _statuses(*results: Result) -> dict[str, str]:
    """STATUSES in the words that fit ``results``."""
    ruled = any(result.rules for result in results)
    return {**STATUSES, "dead": "unused, undocumented"} if ruled else STATUSES


def _meter(result: Result) -> str:
    """The model's bytes by status, as a bar and in words."""
    words = _statuses(result)
    held: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    for parameter in result.analysis.parameters:
        held[_status(result, parameter)] += parameter.bytes
        numbers[_status(result, parameter)] += 1
    whole = sum(held.values())
    shares = [(status, held[status]) for status in STATUSES if numbers[status]]
    spans = "".join(f'<span class="fill {status}" style="flex-grow:{part}"></span>' for status, part in shares if part)
    rows = "".join(
        f'<tr><th scope="row"><span class="status"><span class="swatch {status}" aria-hidden="true"></span>{words[status]}'
        f"</span></th><td>{numbers[status]:,}</td><td>{size(part)}</td><td>{percent(part, whole)}</td></tr>"
        for status, part in shares
    )
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("parameters", "number", "bytes", "share"))
    table = f'<table class="shares"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="meter" aria-hidden="true">{spans}</div>{table}'


def _outcomes(result: Result) -> str:
    """What DDP does with each setting."""
    rehearsal = result.analysis.rehearsal
    if rehearsal is None:
        return '<p class="traced">DDP was not rehearsed.</p>'
    rows = []
    for setting, outcome in rehearsal.outcomes.items():
        good = outcome == "ok"
        detail = rehearsal.details.get(setting, "")
        more = f"<details><summary>why</summary><p>{_prose(detail)}</p></details>" if detail else ""
        rows.append(
            f'<tr><th scope="row"><code>{escape(setting)}</code></th><td class="{"good" if good else "bad"}">'
            f'<span aria-hidden="true">{_GOOD if good else _BAD}</span> '
            f"{escape(_OUTCOMES.get(outcome, outcome))}{more}</td></tr>"
        )
    caption = f"DDP, rehearsed: {count(rehearsal.ranks, 'rank')}, {count(rehearsal.iterations, 'iteration')}"
    return f'<table class="outcomes"><caption>{caption}</caption><tbody>{"".join(rows)}</tbody></table>'


def _traced(result: Result) -> str:
    trace = result.analysis.trace
    agree = "autograd differs" if trace.disagreements else "autograd agrees"
    complete = "" if trace.complete else "; not every path was traced"
    return (
        f"Traced on {trace.device}: {count(trace.paths, 'path')}, {count(trace.ranks, 'rank')}, "
        f"{count(trace.nodes, 'operation')}; {agree}{complete}."
    )


def _prose(text: str) -> str:
    """A sentence as HTML; what stands between backticks in it is code."""
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:  # one without its partner
        return escape(text)
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def _findings(report: Report) -> Iterator[str]:
    """All findings, those of one result together; what fails is open."""
    for result in report.results:
        if len(report.results) > 1:
            yield f"<h3>{escape(report.title(result))}</h3>"
        if not result.findings:
            yield '<p class="none">No findings.</p>'
        for finding in result.findings:
            yield _finding(report, finding)


def _finding(report: Report, finding: Finding) -> str:
    where = ""
    if finding.location is not None:
        where = f'<span class="where">{escape(report.relative(finding.location.file))}:{finding.location.line}</span>'
    sentence, *verbatim = finding.fix.split("\n")
    code = f"<pre><code>{escape(chr(10).join(verbatim))}</code></pre>" if verbatim else ""
    opened = " open" if finding.severity == "error" else ""
    return (
        f'<details class="finding {finding.severity}"{opened}><summary><span class="badge {finding.severity}">'
        f'<span aria-hidden="true">{_SIGNS[finding.severity]}</span> {finding.severity}</span> '
        f"<strong>{escape(finding.code)}</strong> {escape(finding.name)} {where}</summary>"
        f'<p>{_prose(finding.message)}</p><p class="fix"><strong>What to do:</strong> {_prose(sentence)}</p>{code}</details>'
    )


# ---------------------------------------------------------------------- the data


def document(report: Report) -> dict[str, Any]:
    """What ``page.js`` shows, as JSON-ready data. Rows are lists: their columns are named at its top."""
    return {
        "statuses": _statuses(*report.results),
        "results": [_Rows(report, result).document() for result in report.results],
    }


def _status(result: Result, parameter: Parameter) -> str:
    """A key of STATUSES."""
    if not parameter.trainable:
        return "frozen"
    if parameter.usage == "never":
        return "dead" if result.case.documented_by(parameter) is None else "documented"
    return "sometimes" if parameter.usage == "sometimes" else "used"


class _Rows:
    """One result as rows. What many parameters share (a place, a sentence) is written once, and named by its number."""

    def __init__(self, report: Report, result: Result) -> None:
        self.report, self.result = report, result
        self._places: dict[Location, int] = {}
        self._texts: dict[str, int] = {}

    def document(self) -> dict[str, Any]:
        """The result with all its parameters, in the model's order."""
        result, analysis = self.result, self.result.analysis
        numbers = {parameter.name: number for number, parameter in enumerate(analysis.parameters)}
        document: dict[str, Any] = {
            "title": self.report.title(result),
            "rules": self.report.relative(result.rules.path) if result.rules else None,
            "parameters": [self._parameter(parameter) for parameter in analysis.parameters],
            "entries": [
                [list(entry.params), entry.reason, entry.action, entry.when, entry.line] for entry in result.case.entries
            ],
            "findings": [
                [f.code, f.name, f.severity, f.message, f.fix, [numbers[name] for name in f.parameters if name in numbers]]
                for f in result.findings
            ],
            "edges": self._edges(),
        }
        document["places"] = [self._place(location) for location in self._places]
        document["texts"] = list(self._texts)
        return document

    def _parameter(self, parameter: Parameter) -> list[Any]:
        entry = self.result.case.covering(parameter)
        return [
            parameter.name,
            list(parameter.aliases),
            parameter.module,
            self._text(parameter.module_type),
            list(parameter.shape),
            self._text(parameter.dtype),
            parameter.numel,
            parameter.bytes,
            _status(self.result, parameter),
            parameter.cause,
            self._at(parameter.location),
            self._text(parameter.why),
            None if entry is None else self.result.case.entries.index(entry),
            self.result.case.documented_by(parameter) is not None,
            parameter.evidence if parameter.usage == "sometimes" else None,
        ]

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def _at(self, location: Location | None) -> int | None:
        return None if location is None else self._places.setdefault(location, len(self._places))

    def _place(self, location: Location) -> list[Any]:
        return [self.report.relative(location.file), location.line, location.function, list(_source(location))]

    def _edges(self) -> list[list[Any]]:
        """What flows between modules that hold parameters; what others do is told of the nearest one around them."""
        holders = {at for p in self.result.analysis.parameters for name in (p.name, *p.aliases) for at in _owners(name)}
        kinds = ("gradient", "cut", "dropped")
        merged: dict[tuple[str | None, str | None], tuple[int, int | None]] = {}
        for edge in self.result.analysis.flow:
            ends = _holder(edge.consumer, holders), _holder(edge.producer, holders)
            found = kinds.index(edge.flow), self._at(edge.location)
            if ends[0] != ends[1] and (ends not in merged or found[0] < merged[ends][0]):
                merged[ends] = found
        return [[*ends, kinds[kind], at] for ends, (kind, at) in merged.items()]


def _owners(name: str) -> Iterator[str]:
    """Every module around the parameter or module ``name``, the innermost first, the root ("") last."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _holder(module: str | None, holders: set[str]) -> str | None:
    if module is None or module in holders:
        return module
    return next((owner for owner in _owners(module) if owner in holders), "")


def _source(location: Location) -> Iterator[list[Any]]:
    """Numbered source lines around ``location``, if its file still has the line that was traced; else that line alone."""
    lines = _lines(location.file)
    if not location.text:
        return
    if not 0 < location.line <= len(lines) or lines[location.line - 1].strip() != location.text:
        yield [location.line, location.text]
        return
    first = max(location.line - AROUND, 1)
    shown = lines[first - 1 : location.line + AROUND]
    margin = min(len(line) - len(line.lstrip()) for line in shown if line.strip())
    yield from ([first + offset, line[margin:].rstrip()] for offset, line in enumerate(shown))


@cache
def _lines(file: str) -> tuple[str, ...]:
    try:
        return tuple(Path(file).read_text(encoding="utf-8").expandtabs(4).split("\n"))
    except (OSError, ValueError):
        return ()
