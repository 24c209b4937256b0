"""DDP204 on analyses made by hand."""

from __future__ import annotations

import tomllib

from ddplint.analysis import Parameter
from ddplint.checks.base import Case
from ddplint.checks.ddp204_rank_dependent import check
from tests.made import SETTINGS, analysis, entry, line, rehearsal, rules, unused, used

WHY = "unused on rank 1, used on rank 0"
RAISES = "rank 1, iteration 2: RuntimeError: Expected to have finished reduction; rank 0 waits in all_reduce of iteration 1"


def on_one_rank(name: str, why: str = WHY) -> Parameter:
    """A parameter that one rank uses."""
    location = line(5, "if dist.get_rank() == 0:")
    return unused(name, 5, usage="sometimes", cause="conditional", decided_by="rank", why=why, location=location)


def test_it_names_the_branch_and_who_raises_and_who_waits() -> None:
    ran = rehearsal("reduction_error", "ok", "reduction_error", details={SETTINGS[0]: RAISES})
    (finding,) = check(Case(analysis(on_one_rank("a.w"), on_one_rank("a.b"), used("c.w"), rehearsal=ran)))
    assert finding.message == (
        "model.py:5 `if dist.get_rank() == 0`: 2 parameters of `a` (20 weights, 67 % of the trainable ones) are "
        f"{WHY}; rehearsed with find_unused_parameters=False reduction_error ({RAISES})"
    )
    assert finding.severity == "error"
    assert finding.location == line(5, "if dist.get_rank() == 0:")
    assert "find_unused_parameters=True (rehearsed: ok)" in finding.fix
    assert tomllib.loads(finding.fix.partition("\n")[2])["unused"][0]["when"] == "sometimes"


def test_a_setting_that_hangs_is_said_and_not_proposed() -> None:
    ran = rehearsal("hang", "hang", "hang", details={SETTINGS[1]: "rank 0 waits in all_reduce"})
    (finding,) = check(Case(analysis(on_one_rank("a.w"), rehearsal=ran)))
    assert "with find_unused_parameters=True hang (rank 0 waits in all_reduce)" in finding.message
    assert "find_unused_parameters" not in finding.fix


def test_without_a_rehearsal_the_rule_is_told() -> None:
    (finding,) = check(Case(analysis(on_one_rank("a.w"))))
    assert finding.message.endswith("the rank without them raises in its next forward, and the others wait for it")


def test_each_rank_is_a_finding() -> None:
    other = "unused on rank 0, used on rank 1"
    first, second = check(Case(analysis(on_one_rank("a.w"), on_one_rank("b.w", other), on_one_rank("a.b"))))
    assert (first.parameters, second.parameters) == (("a.w", "a.b"), ("b.w",))


def test_what_something_else_decides_and_what_is_documented_is_left_alone() -> None:
    by_value = unused("b.w", usage="sometimes", cause="conditional", decided_by="value")
    made = analysis(on_one_rank("a.w"), by_value)
    assert list(check(Case(made, rules(entry("a", when="sometimes"))))) == []
