"""The published JSON Schema against the files that the reader takes and refuses."""

from __future__ import annotations

import contextlib
import json
import tomllib
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings

from ddplint.config import embedded_rules
from ddplint.errors import DdplintError
from ddplint.rules import FIELDS, load_rule_file
from ddplint.schema import schema
from tests.rule_texts import ENTRY, GOOD, HEAD, MUTATIONS, WRONG, mutated

VALIDATOR = jsonschema.Draft202012Validator(schema())

# What a schema can't say: how two values compare, how deep a free value may go.
BEYOND_A_SCHEMA = ("for uint8", "nested more than")

RIGHT = [
    GOOD,
    HEAD,
    HEAD + ENTRY,
    HEAD + "[ddp]\n",
    HEAD + 'inputs = { x = { shape = [2], dtype = "bool" }, flag = true }\n',
    HEAD + 'loss = "loss.py:mean"\ninputs = "a.b:c"\n',
    HEAD + 'step = "a.b:c"\n',
]


def valid(text: str) -> bool:
    return VALIDATOR.is_valid(tomllib.loads(text))


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert json.loads(json.dumps(schema())) == schema()


@pytest.mark.parametrize("path", sorted(embedded_rules().glob("*.toml")), ids=lambda path: path.stem)
def test_it_accepts_the_embedded_rule_files(path: Path) -> None:
    assert valid(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", RIGHT)
def test_it_accepts_what_the_reader_accepts(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    assert load_rule_file(path, tmp_path)
    assert valid(text)


@pytest.mark.parametrize(("text", "line"), WRONG)
def test_it_rejects_what_the_reader_refuses(text: str, line: str) -> None:
    if any(words in line for words in BEYOND_A_SCHEMA):
        assert valid(text)
    else:
        assert not valid(text)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(MUTATIONS)
def test_it_accepts_every_mutated_file_that_the_reader_accepts(
    tmp_path_factory: pytest.TempPathFactory, mutations: list[tuple[str, int, int, str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "schema.toml"
    path.write_text(mutated(GOOD, mutations), encoding="utf-8", newline="")
    with contextlib.suppress(DdplintError):
        rules = load_rule_file(path, path.parent)
        assert rules.name
        assert valid(path.read_text(encoding="utf-8"))


def test_every_key_is_described() -> None:
    described = schema()["properties"]
    assert list(described) == list(FIELDS.fields)
    entry = described["unused"]["items"]
    assert set(entry["required"]) == {"params", "reason", "action"}
    assert all(key["description"] for key in entry["properties"].values())
    assert entry["properties"]["action"]["enum"] == ["freeze", "strip", "allow"]
