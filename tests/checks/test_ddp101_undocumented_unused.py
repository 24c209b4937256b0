"""DDP101 on analyses made by hand."""

from __future__ import annotations

from ddplint.checks.base import Case
from ddplint.checks.ddp101_undocumented_unused import check
from tests.made import analysis, entry, frozen, line, rules, unused, used


def readouts() -> Case:
    """Two readouts of seven parameters each, created in two lines."""
    parts = [f"{module}.{name}" for module in ("W_1", "W_2") for name in ("weight", "bias")] + [
        "norm.w",
        "norm.b",
        "act",
    ]
    return Case(
        analysis(
            *(unused(f"ffn_from_atom.{part}", 41) for part in parts),
            *(unused(f"ffn_from_bond.{part}", 42) for part in parts),
            used("head.weight", numel=360),
        )
    )


def test_fourteen_parameters_of_two_readouts_are_two_findings() -> None:
    first, second = check(readouts())
    assert len(first.parameters) == len(second.parameters) == 7
    assert first.location == line(41)
    who, _, reason = first.message.partition(" are never used: ")
    assert who == "7 parameters of `ffn_from_atom` (70 weights, 14 % of the trainable ones)"
    assert reason.startswith("uncalled at model.py:41")
    assert 'params = ["ffn_from_bond.**"]' in second.fix
    assert 'model.get_submodule("ffn_from_bond").requires_grad_(False)' in second.fix


def test_used_frozen_and_documented_parameters_are_left_alone() -> None:
    made = analysis(used("a.w"), frozen("b.w"), unused("c.w", trainable=False), unused("d.w"))
    assert list(check(Case(made, rules(entry("d"))))) == []


def test_the_same_without_a_rule_file_is_reported() -> None:
    (finding,) = check(Case(analysis(used("a.w"), unused("d.w"))))
    assert finding.parameters == ("d.w",)
    assert (finding.code, finding.severity) == ("DDP101", "error")


def test_only_what_no_entry_covers_is_named() -> None:
    made = analysis(used("a.w"), unused("d.w"), unused("d.b"), unused("e.w", 8))
    first, second = check(Case(made, rules(entry("d.w"))))
    assert (first.parameters, second.parameters) == (("d.b",), ("e.w",))


def test_sometimes_used_is_not_its_business() -> None:
    assert list(check(Case(analysis(unused("d.w", usage="sometimes", cause="conditional"))))) == []


def test_an_entry_that_says_sometimes_is_named_where_nothing_uses_the_parameter() -> None:
    made = analysis(used("a.w"), unused("d.w"))
    (finding,) = check(Case(made, rules(entry("d", when="sometimes"))))
    assert "the entry at hybrid.toml:12 says that some path uses it" in finding.message
