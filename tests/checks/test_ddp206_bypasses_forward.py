"""DDP206 on analyses made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ddplint.analysis import Location, Parameter
from ddplint.checks.base import Case
from ddplint.checks.ddp206_bypasses_forward import check
from tests.made import FILE, analysis, line, rehearsal, rules, unused, used


def past(name: str, at: int, function: str = "Crf.score", **more: Any) -> Parameter:
    """A used parameter that DDP's walk does not reach; ``function`` uses it."""
    where = Location(FILE, at, function, "x = x + self.start")
    return used(name, **{"from_loss": True, "from_outputs": False, "bypass": where, **more})


def seen(name: str) -> Parameter:
    """A used parameter that DDP's walk reaches."""
    return used(name, from_loss=True, from_outputs=True)


def test_one_finding_for_each_function_at_its_first_line() -> None:
    made = analysis(past("crf.end", 9), past("crf.start", 5), past("scale", 20, "loss"), seen("a.w"))
    first, second = check(Case(made))
    assert (first.parameters, second.parameters) == (("crf.end", "crf.start"), ("scale",))
    assert first.location is not None
    assert first.location.line == 5
    assert first.message == (
        "model.py:5 `x = x + self.start`: the loss uses 2 parameters of `crf` (20 weights, 50 % of the trainable ones) "
        "here, outside the wrapped forward, where DDP does not find them; with find_unused_parameters=True it marks them "
        "ready twice and raises"
    )


def test_an_opaque_output_is_one_finding_that_names_its_type() -> None:
    made = analysis(past("a.w", 5, "Net.forward"), past("b.w", 7, "Head.forward"), seen("c.w"), opaque_output="Prediction")
    (finding,) = check(Case(made))
    assert finding.parameters == ("a.w", "b.w")
    assert finding.message.startswith(
        "forward returns a `Prediction`, and DDP looks for tensors in tensors, lists, tuples, dicts and dataclasses only: "
        "2 parameters of `a` and `b` (20 weights, 67 % of the trainable ones) look unused to it"
    )
    assert finding.fix.startswith("make `Prediction` a dataclass, or return a dict or a tuple")
    assert finding.location is not None
    assert finding.location.line == 7


def test_an_opaque_part_that_hides_nothing_is_no_finding() -> None:
    assert list(check(Case(analysis(seen("a.w"), opaque_output="Cache")))) == []


@pytest.mark.parametrize(("flag", "severity"), [(None, "warning"), (True, "error"), (False, "info")])
def test_its_severity_depends_on_the_declared_wrap(flag: bool | None, severity: str) -> None:
    (finding,) = check(Case(analysis(past("a.w", 5)), rules(flag=flag)))
    assert finding.severity == severity


@pytest.mark.parametrize(
    "other",
    [
        past("a.w", 5, usage="never"),
        past("a.w", 5, from_outputs=True),
        past("a.w", 5, from_loss=False),
        past("a.w", 5, checkpoint=line(3)),
        past("a.w", 5, trainable=False),
        unused("a.w"),
    ],
)
def test_what_is_something_else_is_left_alone(other: Parameter) -> None:
    assert list(check(Case(analysis(other)))) == []


def test_a_place_that_is_not_known_does_not_hide_it() -> None:
    (finding,) = check(Case(analysis(past("a.w", 5, bypass=None))))
    assert (finding.parameters, finding.location) == (("a.w",), None)
    assert finding.message.startswith("the loss uses ")


def test_it_says_what_was_rehearsed() -> None:
    twice, runs = rehearsal("ok", "ready_twice"), rehearsal("reduction_error", "ok", "reduction_error")
    (finding,) = check(Case(analysis(past("a.w", 5), rehearsal=twice)))
    assert (
        "twice and raises (rehearsed: find_unused_parameters=False ok; =True ready_twice; static_graph ok)"
        in finding.message
    )
    assert finding.fix.endswith("or wrap with find_unused_parameters=False")
    (finding,) = check(Case(analysis(past("a.w", 5), rehearsal=runs)))
    assert "it does not expect its gradient (rehearsed: " in finding.message
    assert "wrap with" not in finding.fix
