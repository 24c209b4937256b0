"""DDP105 on analyses made by hand."""

from __future__ import annotations

from ddplint.checks.base import Case
from ddplint.checks.ddp105_not_stripped import check
from tests.made import analysis, entry, rules, unused, used


def test_frozen_leftovers_are_named_too() -> None:
    made = analysis(unused("decoder.w"), unused("decoder.b", trainable=False), used("head.w"))
    (finding,) = check(Case(made, rules(entry("decoder", action="strip"))))
    assert finding.parameters == ("decoder.w", "decoder.b")
    assert "do not build `decoder`" in finding.fix
    assert "(2 parameters, 80 B)" in finding.fix


def test_what_is_gone_or_used_or_only_to_be_allowed_is_left_alone() -> None:
    made = analysis(used("a.w"), unused("b.w"))
    entries = (entry("decoder", action="strip"), entry("a", action="strip"), entry("b"))
    assert list(check(Case(made, rules(*entries)))) == []
