"""The page's bytes: what is in them, and that nothing breaks out of them. ``test_page.py`` opens it in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ddplint.analysis import Location, ModuleEdge
from ddplint.checks.base import Finding
from ddplint.errors import DdplintError
from ddplint.report import Report, Result
from ddplint.report.html import document, embedded, ready, render
from tests.made import analysis, entry, frozen, line, rehearsal, rules, unused, used

NASTY = "</script><script>alert(1)</script><!-- &amp; <b onmouseover='x'>\u2028"


class Elements(HTMLParser):
    """The elements that a browser would make of a page, and the text in its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self._in = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(key, value or "") for key, value in attrs]
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] += data
        elif self._in != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def finding(**more: Any) -> Finding:
    fields = {
        "code": "DDP101",
        "name": "undocumented-unused",
        "severity": "error",
        "message": "`b` is never used",
        "parameters": ("b.w",),
        "location": line(7),
        "fix": "use it:\n[[unused]]",
    }
    return Finding(**{**fields, **more})


def report(*results: Result) -> Report:
    return Report(results, folder="/work/project")


def failing() -> Result:
    flow = (ModuleEdge(None, "a", "gradient"), ModuleEdge("a", "b", "cut", line(9, "b(x).detach()")))
    found = analysis(
        used("a.w"),
        unused("b.w", cause="severed"),
        unused("c.w"),
        frozen("d.w"),
        flow=flow,
        rehearsal=rehearsal("reduction_error"),
    )
    return Result(found, (finding(),), rules(entry("c.*", reason="an old head")))


def data_of(page: str) -> Any:
    return json.loads(Elements(page).scripts[1])


def test_the_page_says_the_verdict_first_in_plain_html() -> None:
    text = Elements(render(report(failing()))).text
    assert (
        text.index("hybrid fails") < text.index("1 error") < text.index("2 parameters unused on every path, 1 undocumented")
    )
    assert "find_unused_parameters=False ✕ fails: reduction error" in text


def test_several_results_have_a_card_each() -> None:
    page = render(report(failing(), Result(analysis(used("a.w")), (), rules())))
    assert page.count('<article class="card') == 2
    assert "1 of 2 checkpoint types fails: hybrid" in Elements(page).text


def test_a_finding_is_told_with_its_place_and_what_to_do() -> None:
    text = Elements(render(report(failing()))).text
    assert "DDP101 undocumented-unused model.py:7 b is never used What to do: use it: [[unused]]" in text


def test_each_status_has_its_number_and_bytes() -> None:
    text = Elements(render(report(failing()))).text
    assert "unused, undocumented 1 40 B 25 %" in text
    assert "unused, documented 1 40 B 25 %" in text
    assert "frozen 1 40 B 25 %" in text


def test_without_rules_unused_is_just_unused() -> None:
    text = Elements(render(report(Result(analysis(unused("b.w")), ())))).text
    assert "unused 1 40 B 100 %" in text
    assert "undocumented" not in text


def test_without_a_rehearsal_the_page_says_so() -> None:
    assert "DDP was not rehearsed." in render(report(Result(analysis(used("a.w")))))


def test_the_data_is_what_document_says() -> None:
    one = report(failing())
    assert data_of(render(one)) == json.loads(json.dumps(document(one)))


def test_a_parameter_has_its_cause_place_reason_and_entry() -> None:
    (result,) = document(report(failing()))["results"]
    row = result["parameters"][2]
    assert row[0] == "c.w"
    assert row[8:10] == ["documented", "uncalled"]
    assert result["places"][row[10]][:3] == ["model.py", 7, "Net.forward"]
    assert result["texts"][row[11]] == "`c.w` has a reason"
    assert result["entries"][row[12]] == [["c.*"], "an old head", "allow", "never", 12]


def test_an_edge_has_its_flow_and_the_place_of_its_cut() -> None:
    (result,) = document(report(failing()))["results"]
    (first, second) = result["edges"]
    assert first == [None, "a", "gradient", None]
    assert second[:3] == ["a", "b", "cut"]
    assert result["places"][second[3]][1] == 9


def test_edges_of_modules_without_parameters_are_told_of_the_module_around_them() -> None:
    flow = (
        ModuleEdge(None, "a.drop", "cut"),
        ModuleEdge("a.drop", "a.lin", "gradient"),
        ModuleEdge(None, "a.act", "gradient"),
    )
    found = analysis(used("a.lin.w"), used("a.w"), flow=flow)
    (result,) = document(report(Result(found)))["results"]
    assert [edge[:3] for edge in result["edges"]] == [[None, "a", "gradient"], ["a", "a.lin", "gradient"]]


def test_source_lines_around_a_place_are_shown_if_the_file_still_has_it(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("class Net:\n    def forward(self, x):\n        y = x.detach()\n        return y\n")
    place = Location(str(file), 3, "Net.forward", "y = x.detach()")
    (result,) = document(report(Result(analysis(unused("b.w", location=place)))))["results"]
    assert result["places"][0][3] == [
        [1, "class Net:"], [2, "    def forward(self, x):"], [3, "        y = x.detach()"], [4, "        return y"], [5, ""]
    ]  # fmt: skip


def test_a_line_that_has_changed_since_is_shown_as_it_was_traced(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("one\ntwo\nthree\n")
    place = Location(str(file), 2, "Net.forward", "y = x.detach()")
    (result,) = document(report(Result(analysis(unused("b.w", location=place)))))["results"]
    assert result["places"][0][3] == [[2, "y = x.detach()"]]


def test_the_same_report_gives_the_same_bytes_whatever_time_it_took() -> None:
    one = failing()
    slow = replace(one, analysis=replace(one.analysis, trace=replace(one.analysis.trace, seconds=99.0)))
    assert render(report(one)) == render(report(failing())) == render(report(slow))


def nasty() -> Report:
    place = Location(f"/work/project/{NASTY}.py", 3, NASTY, NASTY)
    bad = unused(f"{NASTY}.w", location=place, why=NASTY, module_type=NASTY)
    found = analysis(
        bad, used("$title.${data}"), rehearsal=rehearsal("hang", details={"find_unused_parameters=False": NASTY})
    )
    told = finding(message=NASTY, fix=f"{NASTY}\n{NASTY}", parameters=(bad.name,), location=place)
    return report(Result(found, (told,), replace(rules(entry("z.*", reason=NASTY)), name=NASTY)))


def test_nothing_breaks_out_of_the_page() -> None:
    plain, page = Elements(render(report(failing()))), Elements(render(nasty()))
    assert len(page.scripts) == len(plain.scripts) == 4
    assert page.tags.count("b") == plain.tags.count("b") == 0
    assert not [key for key, _ in page.attributes if key.startswith("on")]
    assert json.loads(page.scripts[1])["results"][0]["parameters"][0][0] == f"{NASTY}.w"


def test_embedded_data_has_no_character_that_html_knows() -> None:
    text = embedded({"a": NASTY})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": NASTY}


def test_the_policy_allows_its_own_scripts_and_no_network() -> None:
    page = render(report(failing()))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    scripts = Elements(page).scripts
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = re.findall(r"'sha256-([^']*)'", unescape(policy))
    assert sorted(allowed) == sorted(hash for number, hash in enumerate(hashes) if number != 1)
    assert unescape(policy).startswith("default-src 'none'; script-src 'sha256-")


def test_the_page_refers_to_no_other_file() -> None:
    references = [value for key, value in Elements(render(nasty())).attributes if key in ("src", "href")]
    assert references
    assert all(value.startswith("#") for value in references)


def test_a_page_of_5000_parameters_is_under_10_mb() -> None:
    many = [unused(f"encoder.layers.{n // 20}.part{n % 20}.weight", n, why=f"reason {n}") for n in range(5000)]
    assert len(render(report(Result(analysis(*many))))) < 10_000_000


def test_without_plotly_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(DdplintError, match=r"^--format html: .*needs plotly.*; pip install 'ddplint\[html\]'$"):
        ready()
    with pytest.raises(DdplintError, match=r"pip install 'ddplint\[html\]'"):
        render(report(failing()))
