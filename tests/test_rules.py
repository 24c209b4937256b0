"""Rule files: what a good one says, what is said about a bad one, and the way to JSON and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from ddplint.errors import DdplintError
from ddplint.rules import DdpSettings, RuleFile, TargetSpec, TensorSpec, UnusedRule, load_rule_file, matches
from tests.rule_texts import ENTRY, GOOD, HEAD, MUTATIONS, WRONG, mutated


def write(folder: Path, text: str, name: str = "rules.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refused(path: Path) -> str:
    with pytest.raises(DdplintError) as raised:
        load_rule_file(path, path.parent)
    line = str(raised.value)
    assert "\n" not in line
    return line


def test_a_good_file_is_what_it_says(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    assert load_rule_file(path, tmp_path) == RuleFile(
        path=str(path),
        name="hybrid",
        description="[[unused]]\ntwo lines",
        detect=("latent_dist.*", "vocab_module.*"),
        rename={"grover.": "kermt.", "latent_dist.": ""},
        target=TargetSpec(
            factory="models/finetune.py:build",
            kwargs={"checkpoint": "hybrid", "sizes": [1, 2.5], "nested": {"on": True}},
            inputs=(TensorSpec((2, 3)), TensorSpec((), "int64", -1, 9), 4, True, "mean"),
            variants="models.finetune:variants",
            loss="outputs.0.loss",
            base=str(tmp_path),
        ),
        ddp=DdpSettings(find_unused_parameters=True, source=("train.py", "scripts/*.sh")),
        unused=(
            UnusedRule(("vocab_module.*",), "pretraining heads", "freeze", line=24),
            UnusedRule(
                ("encoder.**.bias", "mask_token"),
                "only for masked batches",
                "allow",
                "sometimes",
                True,
                line=31,
            ),
        ),
    )


def test_the_least_file(tmp_path: Path) -> None:
    text = '[checkpoint]\nname = "x"\n[target]\nfactory = "a.b:c.d"\nstep = "a.b:step"\n'
    rules = load_rule_file(write(tmp_path, text), "base")
    assert rules.target == TargetSpec("a.b:c.d", step="a.b:step", base="base")
    assert (rules.description, rules.detect, rules.unused, rules.rename) == ("", (), (), {})
    assert rules.ddp == DdpSettings(None, None)


def test_keyword_inputs(tmp_path: Path) -> None:
    inputs = 'inputs = { input_ids = { shape = [2, 8], dtype = "int64", high = 100 }, return_dict = false }'
    text = f'[checkpoint]\nname = "x"\n[target]\nfactory = "a:b"\n{inputs}\n'
    rules = load_rule_file(write(tmp_path, text), tmp_path)
    assert rules.target.inputs == {"input_ids": TensorSpec((2, 8), "int64", 0, 100), "return_dict": False}


@pytest.mark.parametrize(
    "target",
    [
        TargetSpec("a:b"),
        TargetSpec("a.py:b", {"x": [1, {"y": None}]}, "a:inputs", "a:variants", "loss", "a:step", "/base", True),
        TargetSpec("a:b", inputs=(TensorSpec((1, 2), "int8", 3, 4), 5, "six", False)),
        TargetSpec("a:b", inputs={"x": TensorSpec(()), "flag": True}),
    ],
)
def test_a_target_survives_json(target: TargetSpec) -> None:
    assert TargetSpec.from_json(json.loads(json.dumps(target.to_json()))) == target


def test_matches_is_had_from_here() -> None:
    assert matches("encoder", "encoder.weight")


@pytest.mark.parametrize(("text", "line"), WRONG)
def test_what_is_said_about_a_wrong_file(tmp_path: Path, text: str, line: str) -> None:
    path = write(tmp_path, text)
    assert refused(path) in (f"{path}:{line}", f"{path}: {line}")


def test_all_faults_are_said_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = ENTRY.replace('"r"', '""') + '[target]\nfactory = 3\n[checkpoint]\nnam = "x"\n[extra]\n'
    said = refused(write(tmp_path, text))
    keys = [
        "3: unused[0].reason",
        "line 6: target.factory",
        "line 7: checkpoint.name",
        "line 8: checkpoint.nam:",
    ]
    places = [said.index(key) for key in [*keys, "line 9: extra"]]
    assert places == sorted(places)


def test_the_path_is_relative_inside_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "x")
    monkeypatch.chdir(tmp_path)
    assert refused(tmp_path / "rules.toml").startswith("rules.toml:1: broken TOML: ")


def test_missing_required_table_with_a_near_name(tmp_path: Path) -> None:
    said = refused(write(tmp_path, HEAD.replace("[checkpoint]", "[chekpoint]")))
    assert "checkpoint: missing (expected a table [checkpoint])" in said
    assert 'line 1: chekpoint: unknown key, did you mean "checkpoint"?' in said


@settings(derandomize=True, deadline=None, max_examples=300)
@given(MUTATIONS)
def test_a_mutated_file_loads_or_is_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, mutations: list[tuple[str, int, int, str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated.toml"
    path.write_text(mutated(GOOD, mutations), encoding="utf-8", newline="")
    outcome: Any
    try:
        outcome = load_rule_file(path, path.parent)
    except DdplintError as error:
        outcome = str(error)
        assert outcome.startswith(str(path))
        assert outcome.splitlines() == [outcome]
    assert outcome
