"""DDP201 on analyses made by hand."""

from __future__ import annotations

from ddplint.checks.base import Case
from ddplint.checks.ddp201_severed_gradient import check
from tests.made import analysis, entry, line, rules, unused, used


def test_one_finding_for_each_line_that_cuts() -> None:
    made = analysis(
        unused("a.w", 5, cause="severed", location=line(5, "y = self.a(x).detach()")),
        unused("b.w", 5, cause="severed", location=line(5, "y = self.a(x).detach()")),
        unused("c.w", 6, cause="severed"),
        unused("d.w", 6, cause="discarded"),
        used("e.w"),
    )
    first, second = check(Case(made))
    assert (first.parameters, second.parameters) == (("a.w", "b.w"), ("c.w",))
    assert "the gradient is cut at model.py:5, so they never train" in first.message
    assert first.location == line(5, "y = self.a(x).detach()")
    assert "so it never trains" in second.message
    assert first.severity == "warning"


def test_documented_ones_are_left_alone() -> None:
    assert list(check(Case(analysis(unused("a.w", cause="severed")), rules(entry("a"))))) == []


def test_an_unknown_place_is_left_out_of_the_sentence() -> None:
    (finding,) = check(Case(analysis(unused("a.w", cause="severed", location=None, place=""))))
    assert "the gradient is cut, so it never trains" in finding.message
