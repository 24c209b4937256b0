"""The cases: models re-created from public reports, and what real runs of them said (``tests/cases/README.md``)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ddplint.analyse import analyse
from ddplint.analysis import Analysis
from ddplint.request import Request
from ddplint.rules import TargetSpec
from tests.kinds.compare import replay

CASES = Path(__file__).parent / "cases"
TRUTH: dict[str, dict[str, Any]] = json.loads((CASES / "truth.json").read_text())
AT_ONCE = 2  # processes
SECONDS = 240.0  # for one case, on a busy machine
MISSING = {
    name: lacking
    for name, truth in TRUTH.items()
    if (lacking := [p for p in truth["requires"] if importlib.util.find_spec(p) is None])
}

Ran = subprocess.CompletedProcess[str]


def check(name: str) -> Ran:
    """``ddplint check`` on one case, in a process of its own."""
    command = [sys.executable, "-m", "ddplint", "check", "--target", f"{CASES / name}.py", "--format", "json"]
    return subprocess.run(
        command,
        cwd=CASES.parent.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def checked() -> Any:
    """Every case's run, started when the first test asks, two at a time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs: dict[str, Future[Ran]] = {name: pool.submit(check, name) for name in TRUTH if name not in MISSING}
        yield runs
        for run in runs.values():
            run.cancel()


def _cases(names: list[str]) -> pytest.MarkDecorator:
    def case(name: str) -> Any:
        lacking = MISSING.get(name, [])
        reason = f"{' and '.join(lacking)} not installed"
        return pytest.param(name, marks=pytest.mark.skipif(bool(lacking), reason=reason))

    return pytest.mark.parametrize("name", [case(name) for name in names])


each_case = _cases([*TRUTH])
each_static_case = _cases([name for name, truth in TRUTH.items() if not truth["sometimes"]])


def result(checked: Mapping[str, Future[Ran]], name: str) -> dict[str, Any]:
    """The one result of a case's report."""
    ran = checked[name].result()
    assert ran.returncode in (0, 1), ran.stderr
    (found,) = json.loads(ran.stdout)["results"]
    assert isinstance(found, dict)
    return found


def test_the_cases_are_those_that_the_truth_is_about() -> None:
    assert {path.stem for path in CASES.glob("*.py")} == TRUTH.keys()


@each_case
def test_no_case_ends_in_a_traceback(checked: Mapping[str, Future[Ran]], name: str) -> None:
    ran = checked[name].result()
    assert "Traceback" not in ran.stdout + ran.stderr
    assert ran.returncode in (0, 1), ran.stderr


@each_case
def test_never_and_sometimes_used_are_what_real_runs_gave(checked: Mapping[str, Future[Ran]], name: str) -> None:
    found, truth = result(checked, name), TRUTH[name]
    assert [p["name"] for p in found["unused"] if p["usage"] == "never"] == truth["never"]
    assert [p["name"] for p in found["unused"] if p["usage"] == "sometimes"] == truth["sometimes"]
    assert found["verdict"]["usage"] == ("dynamic" if truth["sometimes"] else "static")


@each_case
def test_the_counts_are_of_trainable_parameters(checked: Mapping[str, Future[Ran]], name: str) -> None:
    counts, truth = result(checked, name)["counts"], TRUTH[name]
    assert counts["trainable"] == truth["trainable_count"]
    assert counts["always"] == truth["always_count"]
    assert counts["sometimes"] == len(truth["sometimes"])
    assert counts["never"] == len(truth["never"])


@each_case
def test_the_verdict_is_what_real_ddp_did(checked: Mapping[str, Future[Ran]], name: str) -> None:
    verdict, truth = result(checked, name)["verdict"], TRUTH[name]
    off, on = truth["ddp_false_outcome"], truth["ddp_true_outcome"]
    assert verdict["ddp"]["find_unused_parameters=False"] == off
    assert verdict["ddp"]["find_unused_parameters=True"] == on
    needs = "not-needed" if off == "ok" else "needed" if on == "ok" else "insufficient"
    assert verdict["find_unused_parameters"] == needs


CLEAN = [
    name
    for name, truth in TRUTH.items()
    if not (truth["never"] or truth["sometimes"]) and truth["ddp_false_outcome"] == truth["ddp_true_outcome"] == "ok"
]


@_cases(CLEAN)
def test_a_clean_case_has_no_error_and_no_warning(checked: Mapping[str, Future[Ran]], name: str) -> None:
    findings = result(checked, name)["findings"]
    assert [f for f in findings if f["severity"] in ("error", "warning")] == []
    assert checked[name].result().returncode == 0


@each_case
def test_graph_autograd_and_backward_agree(checked: Mapping[str, Future[Ran]], name: str) -> None:
    assert result(checked, name)["trace"]["agrees_with_autograd"] is True


@each_case
def test_every_unused_parameter_is_explained_in_the_cases_own_file(checked: Mapping[str, Future[Ran]], name: str) -> None:
    for parameter in result(checked, name)["unused"]:
        assert parameter["cause"] in ("uncalled", "discarded", "severed", "output-only", "conditional"), parameter
        assert len(parameter["why"].split()) >= 3, parameter
        place = parameter["location"]
        assert place["line"] > 0, parameter
        if parameter["cause"] == "conditional" and TRUTH[name]["requires"]:
            # the model is all the library's, and so is the line that decides
            assert any(f"/site-packages/{package}/" in place["file"] for package in TRUTH[name]["requires"]), parameter
        else:
            assert place["file"] == f"tests/cases/{name}.py", parameter


@each_static_case
def test_what_ddp_does_not_find_from_the_outputs(name: str) -> None:
    unreached = [p.name for p in analysis(name).parameters if p.trainable and not p.from_outputs]
    assert unreached == TRUTH[name]["never_from_outputs"]


def analysis(name: str) -> Analysis:
    """The engine's answer about a case's first path; the report does not carry all of it."""
    return analyse(Request(_spec(name), steps=1, ranks=1, paths=1, rehearse=False))


def _spec(name: str) -> TargetSpec:
    return TargetSpec(factory=f"{name}.py:build", base=str(CASES), from_module=True)


@each_case
def test_the_recorded_graph_runs_again_to_the_same_loss_and_outputs(name: str) -> None:
    assert replay(_spec(name)).differing() == []
