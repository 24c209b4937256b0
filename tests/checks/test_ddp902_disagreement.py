"""DDP902 on analyses made by hand."""

from __future__ import annotations

from ddplint.analysis import Disagreement
from ddplint.checks.base import Case
from ddplint.checks.ddp902_disagreement import check
from tests.made import analysis, unused, used


def test_one_finding_for_each_kind_of_disagreement() -> None:
    made = analysis(
        used("a.w"),
        used("a.b"),
        unused("c.w"),
        used("d.w"),
        disagreements=(
            Disagreement("a.w", graph=False, autograd=True, backward=True),
            Disagreement("a.b", graph=False, autograd=True, backward=True),
            Disagreement("c.w", graph=True, autograd=False, backward=None),
        ),
    )
    first, second = check(Case(made))
    assert (first.parameters, second.parameters) == (("a.w", "a.b"), ("c.w",))
    assert first.message.endswith("recorded graph unused, autograd's graph used, backward used")
    assert second.message.endswith("recorded graph used, autograd's graph unused, backward could not be run on this device")
    assert "ddplint why c.w" in second.fix
    assert second.location == made.parameters[2].location


def test_agreement_is_no_finding() -> None:
    assert list(check(Case(analysis(used("a.w"), unused("b.w"))))) == []
