"""Which parameter a name means, and the words of ``ddplint why``."""

from __future__ import annotations

import pytest

from ddplint.analysis import Parameter, Step
from ddplint.errors import DdplintError
from ddplint.explain import explain, find
from tests.made import FILE, frozen, line, unused, used

PARAMETERS = (
    used("encoder.layer.0.weight", aliases=("shared.weight", "head.decoder.weight")),
    used("encoder.layer.1.weight"),
    used("encoder.layer.1.bias"),
    used("scale"),
)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("scale", "scale"),
        ("encoder.layer.1.bias", "encoder.layer.1.bias"),
        ("bias", "encoder.layer.1.bias"),
        ("1.weight", "encoder.layer.1.weight"),
        ("shared.weight", "encoder.layer.0.weight"),
        ("decoder.weight", "encoder.layer.0.weight"),
    ],
)
def test_a_name_an_alias_and_the_end_of_either_are_enough(name: str, found: str) -> None:
    assert find(PARAMETERS, name).name == found


def test_an_end_that_several_share_lists_them() -> None:
    with pytest.raises(DdplintError) as caught:
        find(PARAMETERS, "weight")
    assert str(caught.value) == (
        '2 parameters end in "weight": encoder.layer.0.weight, encoder.layer.1.weight; say more of the name'
    )


def test_many_that_share_an_end_are_counted() -> None:
    with pytest.raises(DdplintError, match=r": blocks\.0\.w, blocks\.1\.w, blocks\.2\.w and 45 more; "):
        find([used(f"blocks.{i}.w") for i in range(48)], "w")


@pytest.mark.parametrize("name", ["encoder.layer.1.weigth", "ncoder.layer.1.weight"])
def test_no_such_parameter_has_a_near_miss(name: str) -> None:
    with pytest.raises(DdplintError) as caught:
        find(PARAMETERS, name)
    assert str(caught.value).startswith(f'no parameter "{name}", did you mean "encoder.layer.1.weight"?; ')


def test_what_is_like_no_parameter_gets_no_near_miss() -> None:
    with pytest.raises(DdplintError, match=r'^no parameter "xyz"; the model has 4, '):
        find(PARAMETERS, "xyz")


WAY = (
    Step("linear", "head", line(5, "x = self.head(x)"), carries=True),
    Step("relu", "", line(6), carries=True),
    Step("detach", "", line(7), carries=False),
    Step("sum", "", None, carries=False),
)


def test_a_severed_parameter_shows_where_the_gradient_ends() -> None:
    parameter = unused("head.weight", cause="severed", aliases=("tied.weight",))
    assert explain(parameter, WAY).splitlines() == [
        "head.weight: never used; severed",
        "  the same tensor as tied.weight",
        f"  {FILE}:7 in Net.forward",
        "  `head.weight` has a reason",
        "",
        "the way of its value, with the module that each operation runs in:",
        f"  linear  head     {FILE}:5 in Net.forward",
        f"  relu    (model)  {FILE}:6 in Net.forward",
        "  -- no gradient comes back from here on --",
        f"  detach  (model)  {FILE}:7 in Net.forward",
        "  sum     (model)",
        "  -- the loss --",
    ]


@pytest.mark.parametrize(
    ("cause", "end"),
    [
        ("discarded", "  -- its value goes no further --"),
        ("output-only", "  -- forward's output: the loss does not use this part --"),
        ("conditional", "  -- the loss --"),
    ],
)
def test_a_way_has_an_end(cause: str, end: str) -> None:
    assert explain(unused("head.weight", cause=cause), WAY[:2]).splitlines()[-1] == end


def test_a_used_parameter_goes_to_the_loss() -> None:
    lines = explain(used("head.weight"), WAY[:2]).splitlines()
    assert lines[0] == "head.weight: always used"
    assert lines[-1] == "  -- the loss --"
    assert not [text for text in lines if "no gradient" in text]


def test_a_module_never_called_has_no_way() -> None:
    lines = explain(unused("spare.weight"), ()).splitlines()
    assert lines[0] == "spare.weight: never used; uncalled"
    assert lines[-1] == "no operation takes it"


def test_a_place_comes_with_its_source_line() -> None:
    parameter = unused("spare.weight", location=line(3, "self.spare = nn.Linear(4, 4)"))
    assert "    > self.spare = nn.Linear(4, 4)" in explain(parameter, ()).splitlines()


@pytest.mark.parametrize(
    ("parameter", "verdict"),
    [
        (frozen("a.weight"), "a.weight: frozen, so nothing was asked about it"),
        (
            frozen("a.weight", usage="never", cause="uncalled"),
            "a.weight: never used, frozen, traced as if it were trainable; uncalled",
        ),
        (
            unused("a.weight", usage="sometimes", cause="conditional", evidence="possible"),
            "a.weight: sometimes used, possible but not observed; conditional",
        ),
    ],
)
def test_what_the_verdict_rests_on_is_said(parameter: Parameter, verdict: str) -> None:
    assert explain(parameter, ()).splitlines()[0] == verdict
