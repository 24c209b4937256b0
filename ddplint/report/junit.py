"""JUnit XML, for anything that shows test results: a suite is a checkpoint type, a test case is a rule.

Elements and attributes are those of Jenkins' schema (junit-10.xsd in jenkinsci/xunit-plugin), in its order; there are
no times, so two runs give the same bytes. ASCII, whatever the names hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

from ddplint import __version__
from ddplint.checks import registry
from ddplint.checks.base import Check, Finding
from ddplint.checks.wording import count
from ddplint.report.model import Report, Result, Unchecked

_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, production 2


def render(report: Report) -> str:
    """``report`` as XML, indented: errors and warnings are failures; what could not be checked is an error."""
    suites = [_suite(report, result) for result in report.results] + [_error(entry) for entry in report.unchecked]
    root = ET.Element("testsuites", name="ddplint")
    for number in ("tests", "failures", "errors"):
        root.set(number, str(sum(int(suite.get(number, "0")) for suite in suites)))
    root.extend(suites)
    ET.indent(root)
    return f"{ET.tostring(root, encoding='us-ascii', xml_declaration=True).decode('ascii')}\n"


def _suite(report: Report, result: Result) -> ET.Element:
    title = _text(report.title(result))
    cases = [_case(report, result, check, title) for check in registry.all_checks()]
    suite = ET.Element("testsuite", name=title, tests=str(len(cases)))
    for name, child in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(child) is not None for case in cases)))
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(report, result):
        ET.SubElement(properties, "property", name=name, value=_text(value))
    suite.extend(cases)
    return suite


def _properties(report: Report, result: Result) -> Iterator[tuple[str, str]]:
    yield "ddplint", __version__
    yield "torch", result.analysis.torch_version
    yield "target", report.target(result)
    if result.rules is not None:
        yield "rules", report.relative(result.rules.path)
    yield "usage", result.usage
    if result.analysis.rehearsal is not None:
        yield from result.analysis.rehearsal.outcomes.items()
    yield "trainable", str(len(result.trainable))
    for usage in ("always", "sometimes", "never"):
        yield usage, str(len(result.with_usage(usage)))


def _case(report: Report, result: Result, check: Check, title: str) -> ET.Element:
    case = ET.Element("testcase", classname=f"ddplint.{title}", name=f"{check.CODE} {check.NAME}")
    found = [finding for finding in result.findings if finding.code == check.CODE]
    failing = [finding for finding in found if finding.severity != "info"]
    if result.codes is not None and check.CODE not in result.codes:
        ET.SubElement(case, "skipped", message="not selected")
    elif failing:
        worst = "error" if any(finding.severity == "error" for finding in failing) else "warning"
        more = f" (and {count(len(failing) - 1, 'more finding')})" if len(failing) > 1 else ""
        failure = ET.SubElement(case, "failure", type=worst, message=_text(f"{failing[0].message}{more}"))
        failure.text = _told(report, found)
    elif found:
        ET.SubElement(case, "system-out").text = _told(report, found)
    return case


def _told(report: Report, findings: Sequence[Finding]) -> str:
    return _text("\n\n".join("\n".join(_lines(report, finding)) for finding in findings))


def _lines(report: Report, finding: Finding) -> Iterator[str]:
    place = finding.location
    where = f" {report.relative(place.file)}:{place.line}" if place else ""
    yield f"{finding.code} {finding.name} ({finding.severity}){where}"
    yield finding.message
    if place and place.text:
        yield f"> {place.text}"
    yield f"fix: {finding.fix}"


def _error(entry: Unchecked) -> ET.Element:
    title = _text(entry.title)
    suite = ET.Element("testsuite", name=title, tests="1", failures="0", errors="1", skipped="0")
    case = ET.SubElement(suite, "testcase", classname=f"ddplint.{title}", name="check")
    ET.SubElement(case, "error", type="unchecked", message=_text(entry.why)).text = _text(entry.why)
    return suite


def _text(text: str) -> str:
    """``text`` with a question mark for each character that XML can't hold."""
    return _NO_XML.sub("?", text)
