"""Counts, shares and names in a sentence."""

from __future__ import annotations

import time
import tomllib

import pytest

from ddplint.analysis import Parameter
from ddplint.checks.wording import (
    amount,
    because,
    count,
    details,
    freeze,
    line,
    outcomes,
    percent,
    rehearsed,
    roots,
    short,
    size,
    subject,
    toml_entry,
    weights,
    who,
)
from ddplint.rules import matches
from tests.made import SETTINGS, analysis, frozen, rehearsal, unused, used
from tests.made import line as at


def test_numbers() -> None:
    assert [count(1, "path"), count(0, "path"), count(1200, "path")] == ["1 path", "0 paths", "1,200 paths"]
    assert [amount(999_999), amount(1_250_000), amount(68_976_648_192)] == ["999,999", "1.2 M", "69.0 B"]
    assert [size(512), size(1536), size(3 * 1024**2), size(5 * 1024**3), size(2 * 1024**4)] == [
        "512 B",
        "1.5 KiB",
        "3.0 MiB",
        "5.0 GiB",
        "2.0 TiB",
    ]


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 5, "0 %"),
        (1, 2, "50 %"),
        (29, 1000, "2.9 %"),
        (1, 10**6, "under 0.1 %"),
        (5, 5, "100 %"),
        (0, 0, "0 %"),
    ],
)
def test_percent(part: int, whole: int, text: str) -> None:
    assert percent(part, whole) == text


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a.b"], "`a.b`"),
        (["a", "b"], "`a` and `b`"),
        (["encoder.0.output_proj", "encoder.1.output_proj"], "`encoder.{0,1}.output_proj`"),
        ([f"layers.{i}.norm" for i in range(48)], "`layers.{0..47}.norm`"),
        (["x.0", "x.2", "x.10"], "`x.{0,2,10}`"),
        (["a.0.q", "a.0.k", "a.1.q", "a.1.k"], "`a.{0,1}.{q,k}`"),
        (["a.0.q", "a.0.k", "a.1.q"], "`a.{0,1}.q` and `a.0.k`"),
        (["a", "b", "c", "d"], "`a`, `b`, `c` and `d`"),
        (["a", "b", "c", "d", "e"], "`a`, `b`, `c` and 2 more"),
        (["a.b", "a.b"], "`a.b`"),
    ],
)
def test_short(names: list[str], text: str) -> None:
    assert short(names) == text


def test_short_names_no_parameter_that_is_not_there() -> None:
    for names in (["a.0.q", "a.0.k", "a.1.q"], ["a.0.q", "a.1.k"], ["a.b.c", "a.b", "a.c.c"]):
        assert expanded(short(names)) == set(names)


def expanded(text: str) -> set[str]:
    """The names that a text of ``short`` stands for."""
    found = set()
    for item in text.replace(" and ", ", ").split(", `"):
        stack = [item.strip("`")]
        while stack:
            name = stack.pop()
            before, brace, rest = name.partition("{")
            if not brace:
                found.add(name)
                continue
            inside, _, after = rest.partition("}")
            stack += [f"{before}{part}{after}" for part in inside.split(",")]
    return found


def names_of(parameters: list[Parameter]) -> tuple[str, ...]:
    return roots(parameters, analysis(*parameters, used("model.head.weight"), frozen("model.aux.zero")))


def test_roots_are_the_outermost_modules_that_hold_nothing_else() -> None:
    assert names_of([unused("model.aux.a.weight"), unused("model.aux.b.weight")]) == ("model.aux",)
    assert names_of([unused("model.head.bias")]) == ("model.head.bias",)
    assert names_of([unused("other.x.weight"), unused("model.head.bias")]) == ("other", "model.head.bias")


def test_a_frozen_parameter_that_nobody_asked_about_does_not_split_a_module() -> None:
    group = [unused("readout.w1"), unused("readout.w2")]
    assert roots(group, analysis(*group, frozen("readout.zero"), used("head.w"))) == ("readout",)


def test_subject() -> None:
    whole = [unused("ffn.w", numel=30), unused("ffn.b", numel=20)]
    single, part = [unused("mask", numel=1)], [unused("head.b", numel=2), unused("head.c", numel=2)]
    made = analysis(*whole, *single, *part, used("head.w", numel=45))
    assert subject(whole, made) == "2 parameters of `ffn` (50 weights, 50 % of the trainable ones)"
    assert subject(single, made) == "`mask` (1 weight, 1.0 % of the trainable ones)"
    assert subject(part, made) == "2 parameters `head.{b,c}` (4 weights, 4.0 % of the trainable ones)"
    assert subject(whole[:1], made) == "`ffn.w` (30 weights, 30 % of the trainable ones)"


def test_who_is_the_subject_without_its_weights() -> None:
    made = analysis(unused("ffn.w"), unused("ffn.b"), used("head.w"), used("head.b"))
    ffn, head = made.parameters[:2], made.parameters[2:]
    assert [who(ffn, made), who(head[:1], made), who(head, made)] == [
        "2 parameters of `ffn`",
        "`head.w`",
        "2 parameters of `head`",
    ]


def test_a_place_with_its_source() -> None:
    assert line(at(88, "if scores.sum() > 0:")) == "model.py:88 `if scores.sum() > 0`"
    assert line(at(88)) == "model.py:88"


def test_what_ddp_did() -> None:
    ran = rehearsal("reduction_error", "ok", "hang", details={SETTINGS[2]: "rank 0 waits"})
    assert outcomes(ran) == "find_unused_parameters=False reduction_error; =True ok; static_graph hang"
    made = analysis(rehearsal=ran)
    assert rehearsed(made) == f" (rehearsed: {outcomes(ran)})"
    assert [details(made, setting) for setting in SETTINGS] == ["", "", "rank 0 waits"]
    assert rehearsed(analysis()) == details(analysis(), SETTINGS[2]) == ""


def test_a_share_of_the_trainable_weights_is_said_of_trainable_ones_alone() -> None:
    cold = unused("a.w", trainable=False)
    assert weights([cold], analysis(cold, used("b.w"))) == "10 weights"


def test_because_has_cause_place_and_the_reason_that_all_share() -> None:
    one, two = unused("a.w", 7, why="it is dropped", cause="discarded"), unused("b.w", 7, cause="discarded")
    assert because([one]) == "discarded at model.py:7: it is dropped"
    assert because([one, two]) == "discarded at model.py:7: nothing made of the value reaches the loss"
    assert because([unused("a.w", location=None, why="no")]) == "uncalled: no"


def test_freeze_is_python_for_few_modules_and_words_for_many() -> None:
    group = [unused("layers.0.a.w"), unused("layers.0.a.b"), unused("mask")]
    made = analysis(*group, used("layers.0.c"))
    assert freeze(group, made) == (
        '`model.get_submodule("layers.0.a").requires_grad_(False); model.get_parameter("mask").requires_grad_(False)`'
    )
    many = [unused(f"layers.{i}.a.w") for i in range(9)]
    made = analysis(*many, *(used(f"layers.{i}.b") for i in range(9)))
    assert freeze(many, made) == "requires_grad_(False) on `layers.{0..8}.a`"


def test_what_is_kept_of_one_model_is_not_said_of_another() -> None:
    group = (unused("a.b.w"),)
    for others, root in (((used("a.c.w"),), "a.b"), ((used("c.w"),), "a"), ((used("a.b.v"),), "a.b.w")):
        made = analysis(*group, *others)
        assert roots(group, made) == (root,)
        assert tomllib.loads(toml_entry(group, made))["unused"][0]["params"] == [root if root == "a.b.w" else f"{root}.**"]


def test_many_names_in_short_take_no_longer_than_they_are_long() -> None:
    names = [f"layers.{n}.{part}" for n in range(5000) for part in ("weight", "scale")]
    start = time.process_time()
    assert short(names) == "`layers.{0..4999}.{weight,scale}`"
    assert time.process_time() - start < 2


@pytest.mark.parametrize("usage", ["never", "sometimes"])
def test_the_entry_to_paste_names_exactly_the_group(usage: str) -> None:
    group = [unused(f"blocks.{i}.norm.{p}", usage=usage) for i in range(4) for p in ("weight", "bias")]
    group += [unused("head.bias", usage=usage), unused("odd [name].w", usage=usage)]
    group[0] = unused(group[0].name, usage=usage, aliases=("tied.weight",))
    others = [used("head.weight"), used("tied.bias"), used("blocks.0.fc.weight"), frozen("odd [name]s.w"), frozen("odd *.w")]
    (parsed,) = tomllib.loads(toml_entry(group, analysis(*group, *others)))["unused"]
    named = [p for p in (*group, *others) if any(matches(pattern, p.name) for pattern in parsed["params"])]
    assert named == group
    assert len(parsed["params"]) < len(group)
    assert parsed.get("when", "never") == usage
