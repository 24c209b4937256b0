"""Globs against an independent matcher, and the exact globs against their own promise."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddplint.errors import DdplintError
from ddplint.globs import GLOB_PATTERN, exact_globs, glob_fault, matches, matching
from tests.name_trees import name_trees

STEADY = settings(derandomize=True, deadline=None)


@pytest.mark.parametrize(
    ("pattern", "covered", "not_covered"),
    [
        (
            "vocab_module",
            ["vocab_module.head.weight", "vocab_module"],
            ["vocab_module2.x", "a.vocab_module.x"],
        ),
        ("vocab_module.*", ["vocab_module.head.weight", "vocab_module.bias"], ["vocab_module"]),
        ("vocab_module.**", ["vocab_module.head.weight", "vocab_module"], ["vocab", "vocab_module_2.bias"]),
        ("encoder.*.weight", ["encoder.a.weight"], ["encoder.a.b.weight", "encoder.weight"]),
        ("encoder.**.weight", ["encoder.a.b.weight", "encoder.weight"], ["encoder.a.bias"]),
        ("**.weight", ["weight", "a.b.weight", "a.parametrizations.weight.original0"], ["a.weights"]),
        ("**", ["a", "a.b.c"], []),
        ("**.**.bias", ["bias", "a.b.bias"], ["a.b"]),
        (
            "layers.?.fc[12]",
            ["layers.3.fc1.weight", "layers.0.fc2"],
            ["layers.10.fc1.weight", "layers.1.fc3"],
        ),
        ("layers.[!0-3]", ["layers.4.bias"], ["layers.2.bias", "layers.10.bias"]),
        ("heads.task[ ]1", ["heads.task 1.weight"], ["heads.task_1.weight"]),
        ("a[[]0]", ["a[0].weight"], ["a0.weight"]),
        ("x[]]y", ["x]y"], ["xy"]),
        ("x[+-9]y", ["x0y", "x-y"], ["x.y"]),
        ("Head.weight", ["Head.weight"], ["head.weight"]),
        ("a+b.(c)", ["a+b.(c).weight"], ["aab.c.weight"]),
    ],
)
def test_what_a_glob_covers(pattern: str, covered: list[str], not_covered: list[str]) -> None:
    assert [name for name in covered if not matches(pattern, name)] == []
    assert [name for name in not_covered if matches(pattern, name)] == []
    assert matching([pattern], [*covered, *not_covered]) == covered


@pytest.mark.parametrize(
    ("pattern", "wrong"),
    [
        ("", "it is empty"),
        (".", "it has an empty segment"),
        ("a..b", "it has an empty segment"),
        (".a", "it has an empty segment"),
        ("a.", "it has an empty segment"),
        ("a[b", "a [ is not closed within its segment"),
        ("a[b.c]", "a [ is not closed within its segment"),
        ("a[]", "a [ is not closed within its segment"),
        ("a**", "** stands for whole segments and has to stand between dots"),
        ("a.b**.c", "** stands for whole segments and has to stand between dots"),
        ("a.***", "** stands for whole segments and has to stand between dots"),
        ("a b", "it holds whitespace (a name with a space is matched by [ ])"),
        ("a\n", "it holds whitespace (a name with a space is matched by [ ])"),
        ("a[z-a]", "a range in [ ] runs backwards"),
    ],
)
def test_a_bad_glob_says_what_is_wrong(pattern: str, wrong: str) -> None:
    with pytest.raises(DdplintError) as raised:
        matches(pattern, "a.b")
    assert str(raised.value).startswith("bad glob ")
    assert str(raised.value).endswith(f": {wrong}")
    with pytest.raises(DdplintError):
        matching(["fine", pattern], ["a"])


def test_matching_without_globs_covers_nothing() -> None:
    assert matching([], ["a", "b"]) == []


def covers(pattern: Sequence[str], name: Sequence[str]) -> bool:
    """The definition, word for word: the pattern matches the name or a module that it is in."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(covers(pattern[1:], name[skipped:]) for skipped in range(len(name) + 1))
    return bool(name) and fnmatch.fnmatchcase(name[0], pattern[0]) and covers(pattern[1:], name[1:])


SEGMENTS = st.sampled_from(["a", "b", "ab", "ba", "0", "1", "10", "a-b", "weight"])
GLOB_SEGMENTS = st.one_of(
    SEGMENTS,
    st.sampled_from(["*", "**", "?", "a*", "*b", "?b", "[ab]", "[!a]", "[a-b]*", "[0-9]", "1?", "*-*"]),
)


@STEADY
@given(st.lists(GLOB_SEGMENTS, min_size=1, max_size=5), st.lists(SEGMENTS, min_size=1, max_size=5))
def test_matching_is_the_definition(pattern: list[str], name: list[str]) -> None:
    assert matches(".".join(pattern), ".".join(name)) == covers(pattern, name)


@STEADY
@given(st.text(st.sampled_from("ab.*?[]!-^\\ \n0"), max_size=8))
def test_the_published_pattern_takes_what_the_check_takes(pattern: str) -> None:
    fault = glob_fault(pattern)
    taken = re.fullmatch(GLOB_PATTERN, pattern) is not None
    assert taken == (fault is None or fault.endswith("runs backwards"))
    if fault is None:
        assert matches(pattern, "a.b") in (True, False)


def test_whole_modules_and_numbered_layers_are_named_in_short() -> None:
    layers = [f"layers.{n}.{part}" for n in range(12) for part in ("fc.weight", "fc.bias", "norm.weight")]
    norms = [name for name in layers if "norm" in name]
    rest = [name for name in layers if "norm" not in name]
    assert exact_globs(["head.out.weight", "head.out.bias"], ["head.in.weight"]) == ("head.out.**",)
    assert exact_globs(["head.weight"], ["head.bias"]) == ("head.weight",)
    assert exact_globs(norms, rest) == ("layers.*.norm.**",)
    assert exact_globs(layers, ["head.weight"]) == ("layers.**",)
    assert exact_globs(layers[:6], layers[6:]) == ("layers.0.**", "layers.1.**")
    assert exact_globs(norms[1:], [*rest, *norms[:1]]) == tuple(f"layers.{n}.norm.**" for n in range(1, 12))
    assert exact_globs(layers, []) == ("**",)
    assert exact_globs([], ["a"]) == ()


def test_numbers_are_generalised_where_that_is_exact_and_only_there() -> None:
    wanted = [f"blocks.1.heads.{n}.weight" for n in range(4)]
    others = [f"blocks.0.heads.{n}.weight" for n in range(4)]
    assert exact_globs(wanted, [*others, "blocks.1.heads.bias"]) == tuple(f"blocks.1.heads.{n}.**" for n in range(4))
    assert exact_globs(wanted, [*others, "blocks.1.norm.weight"]) == ("blocks.1.heads.**",)
    assert exact_globs(wanted, [*others, *(f"blocks.1.heads.{n}.bias" for n in range(4))]) == ("blocks.1.heads.*.weight",)


@STEADY
@given(name_trees(), st.randoms(use_true_random=False))
def test_exact_globs_cover_the_wanted_names_and_no_other(names: list[str], random: Random) -> None:
    wanted = [name for name in names if random.random() < 0.6]
    others = [name for name in names if name not in wanted]
    globs = exact_globs(wanted, others)
    assert [glob_fault(glob) for glob in globs] == [None] * len(globs)
    assert matching(globs, names) == wanted
    assert len(globs) <= len(wanted)
    assert len(set(globs)) == len(globs)
