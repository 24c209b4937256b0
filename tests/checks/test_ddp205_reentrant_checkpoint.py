"""DDP205 on analyses made by hand."""

from __future__ import annotations

import pytest

from ddplint.checks.base import Case
from ddplint.checks.ddp205_reentrant_checkpoint import check
from tests.made import analysis, line, rehearsal, rules, used

FIRST, SECOND = line(5, "x = checkpoint(self.block, x, use_reentrant=True)"), line(9)


def test_one_finding_for_each_checkpoint() -> None:
    made = analysis(
        used("a.w", checkpoint=FIRST), used("b.w", checkpoint=SECOND), used("a.b", checkpoint=FIRST), used("c.w")
    )
    first, second = check(Case(made))
    assert (first.parameters, first.location) == (("a.w", "a.b"), FIRST)
    assert (second.parameters, second.location) == (("b.w",), SECOND)
    assert first.message == (
        "model.py:5 `x = checkpoint(self.block, x, use_reentrant=True)`: 2 parameters of `a` (20 weights, 50 % of the "
        "trainable ones) are used inside a re-entrant checkpoint, where DDP's search for unused parameters does not look; "
        "with find_unused_parameters=True it marks them ready twice and raises"
    )
    assert first.fix == "pass use_reentrant=False to the checkpoint, or wrap with find_unused_parameters=False"


@pytest.mark.parametrize(("flag", "severity"), [(None, "warning"), (True, "error"), (False, "info")])
def test_its_severity_depends_on_the_declared_wrap(flag: bool | None, severity: str) -> None:
    (finding,) = check(Case(analysis(used("a.w", checkpoint=FIRST)), rules(flag=flag)))
    assert finding.severity == severity


def test_only_what_runs_is_proposed() -> None:
    ran = rehearsal("ready_twice", "ready_twice", "ok")
    (finding,) = check(Case(analysis(used("a.w", checkpoint=FIRST), rehearsal=ran), rules(flag=False)))
    assert finding.severity == "error"
    assert "(rehearsed: find_unused_parameters=False ready_twice; =True ready_twice; static_graph ok)" in finding.message
    assert finding.fix == "pass use_reentrant=False to the checkpoint, or with static_graph=True (rehearsed: ok)"


def test_a_frozen_parameter_is_none_of_ddps() -> None:
    assert list(check(Case(analysis(used("a.w", checkpoint=FIRST, trainable=False))))) == []
