"""The rule that CONTRIBUTING.md shows is a whole one: it loads, and its examples do what it says of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddplint.analyse import analyse
from ddplint.checks.base import Case, Check, Finding
from ddplint.checks.registry import load
from ddplint.request import Request
from ddplint.rules import TargetSpec

CONTRIBUTING = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()


@pytest.fixture
def shown(tmp_path: Path) -> Check:
    (name,) = re.findall(r"`ddplint/checks/(ddp\w+\.py)`", CONTRIBUTING)
    (source,) = re.findall(r"^```python\n(.+?)^```", CONTRIBUTING, flags=re.MULTILINE | re.DOTALL)
    folder = tmp_path / "checks"
    folder.mkdir()
    (folder / name).write_text(source)
    (check,) = load(folder, package="contributed")
    return check


def findings(check: Check, source: str, folder: Path) -> tuple[Finding, ...]:
    target = folder / "target.py"
    target.write_text(source)
    spec = TargetSpec(factory=f"{target}:build", base=str(folder), from_module=True)
    return tuple(check.check(Case(analyse(Request(spec)))))


def test_the_good_example_is_clean(shown: Check, tmp_path: Path) -> None:
    for example in shown.GOOD:
        assert findings(shown, example.source, tmp_path) == ()


def test_the_bad_example_is_found(shown: Check, tmp_path: Path) -> None:
    for example in shown.BAD:
        (finding,) = findings(shown, example.source, tmp_path)
        assert finding.code == shown.CODE
        assert finding.message == "91 % of the trainable weights never get a gradient"
        assert finding.parameters == ("large.weight", "large.bias")
