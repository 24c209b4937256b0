"""JUnit XML, read by a parser that is not ours."""

from __future__ import annotations

import dataclasses
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from ddplint import __version__
from ddplint.checks import registry
from ddplint.report import Report, Result, Unchecked, render
from tests.made import analysis, entry, line, rehearsal, rules, unused, used

CODES = [check.CODE for check in registry.all_checks()]


def hybrid() -> Result:
    parameters = (used("a.w"), unused("b.w", 5), unused("c.w", 6, cause="severed", location=line(6, "x < y & z")))
    result = Result(analysis(*parameters, rehearsal=rehearsal("reduction_error")), rules=rules(entry("gone"), flag=True))
    return Result(result.analysis, registry.run(result.case, ("DDP101", "DDP103", "DDP201", "DDP303")), result.rules)


def written(*results: Result, **more: Any) -> str:
    return render("junit", Report(results, folder="/work/project", **more))


def read(*results: Result, **more: Any) -> list[TestSuite]:
    return list(JUnitXml.fromstring(written(*results, **more).encode()))


def kinds(suite: TestSuite) -> dict[str, list[type]]:
    return {case.name.split()[0]: [type(found) for found in case.result] for case in suite if isinstance(case, TestCase)}


def test_a_suite_is_a_type_and_a_case_is_a_rule() -> None:
    first, second = read(hybrid(), Result(analysis(used("a.w"))))
    assert (first.name, second.name) == ("hybrid", "model.py:build")
    for suite in (first, second):
        assert [case.name.split()[0] for case in suite] == CODES
        assert {case.classname for case in suite} == {f"ddplint.{suite.name}"}


def test_errors_and_warnings_fail_and_the_rest_passes() -> None:
    (suite,) = read(hybrid())
    failing = {"DDP101", "DDP103", "DDP201"}
    assert {code for code, found in kinds(suite).items() if Failure in found} == failing
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (len(CODES), len(failing), 0, 0)


def test_the_totals_are_the_suites() -> None:
    root = ET.fromstring(written(hybrid(), hybrid(), unchecked=(Unchecked("cmim", "it raised"),)))
    assert root.attrib == {"name": "ddplint", "tests": str(2 * len(CODES) + 1), "failures": "6", "errors": "1"}


def test_a_failure_holds_all_findings_of_its_rule() -> None:
    (suite,) = read(hybrid())
    (failure,) = next(case.result for case in suite if case.name.startswith("DDP101"))
    assert failure.type == "error"
    assert failure.message.endswith("(and 1 more finding)")
    first, second = failure.text.split("\n\n")
    assert first.startswith("DDP101 undocumented-unused (error) model.py:5\n1 parameter")
    assert "\n> x < y & z\nfix: " in second


def test_an_info_passes_and_is_told() -> None:
    (suite,) = read(hybrid())
    case = next(case for case in suite if case.name.startswith("DDP303"))
    assert case.is_passed
    assert case.system_out.startswith("DDP303 static-graph-possible (info)\n")


def test_a_rule_that_was_not_asked_is_skipped() -> None:
    (suite,) = read(dataclasses.replace(hybrid(), codes=("DDP101",)))
    assert {code for code, found in kinds(suite).items() if Skipped in found} == set(CODES) - {"DDP101"}
    assert suite.skipped == len(CODES) - 1


def test_properties() -> None:
    root = ET.fromstring(written(hybrid()))
    assert {entry.get("name"): entry.get("value") for entry in root.iter("property")} == {
        "ddplint": __version__,
        "torch": "2.13.0",
        "target": "model.py:build",
        "rules": "rules/hybrid.toml",
        "usage": "static",
        "find_unused_parameters=False": "reduction_error",
        "find_unused_parameters=True": "ok",
        "static_graph=True": "ok",
        "trainable": "3",
        "always": "1",
        "sometimes": "0",
        "never": "2",
    }


def test_what_could_not_be_checked_is_an_error() -> None:
    *_, suite = read(hybrid(), unchecked=(Unchecked("cmim", "model.py:3: build() raised KeyError"),))
    assert (suite.name, suite.errors) == ("cmim", 1)
    assert kinds(suite) == {"check": [Error]}


@pytest.mark.parametrize("name", ["a<b>&\"'c", "é😀", "a\x00\x1b[31m\ufffe", "\ud800"])
def test_any_name_is_xml(name: str) -> None:
    odd = Result(analysis(unused(f"{name}.w", why=f"`{name}` is here")))
    text = written(Result(odd.analysis, registry.run(odd.case, ("DDP101",))))
    assert text.isascii()
    (suite,) = JUnitXml.fromstring(text.encode())
    assert suite.failures == 1


def test_elements_are_in_the_order_of_the_schema_and_none_has_a_time() -> None:
    root = ET.fromstring(written(hybrid()))
    for suite in root:
        assert [child.tag for child in suite] == ["properties", *["testcase"] * len(CODES)]
    assert not [element for element in root.iter() if {"time", "timestamp"} & set(element.attrib)]
