from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from ddplint import worker
from ddplint.analysis import Analysis, Parameter, TraceRecord

pytest_plugins = ["pytester"]

INSTALLED = any(entry.value == "ddplint.pytest_plugin" for entry in entry_points(group="pytest11"))
PLUGIN = () if INSTALLED else ("-p", "ddplint.pytest_plugin")

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.old_head = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x)).sum()


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}
"""
TARGET = '[target]\nfactory = "model.py:build"\ninputs = "model.py:inputs"\n'
DOCUMENTED = '[[unused]]\nparams = ["old_head.**"]\nreason = "of pretraining"\naction = "allow"\n'


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with one type that is documented and one that is not."""
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\n")
    (pytester.path / "model.py").write_text(MODEL)
    (pytester.path / "rules").mkdir()
    write(pytester, "clean", DOCUMENTED)
    return pytester


def write(project: pytest.Pytester, name: str, rest: str, checkpoint: str | None = None) -> None:
    head = f'[checkpoint]\nname = "{checkpoint or name}"\n'
    (project.path / "rules" / f"{name}.toml").write_text(f"{head}{TARGET}{rest}")


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every type is found to use its parameters, without a trace: where only the collecting is looked at."""
    used = Parameter(
        "old_head.weight", (), "old_head", "Linear", (1,), "float32", 1, 4, True, usage="never", cause="uncalled"
    )
    trace = TraceRecord(device="meta", device_reason="", paths=1, ranks=1, nodes=1, seconds=0.0)
    monkeypatch.setattr(worker, "run", lambda request, **how: Analysis("model.py:build", "2.13.0", (used,), trace))


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest(*PLUGIN, "-p", "no:cacheprovider", *arguments)


# ---------------------------------------------------------------------- --ddplint


@pytest.mark.usefixtures("untraced")
def test_every_rule_file_is_a_test(project: pytest.Pytester) -> None:
    write(project, "another", DOCUMENTED)
    result = run(project, "--ddplint", "-v")
    result.assert_outcomes(passed=2)
    assert re.findall(r"rules/\w+\.toml::\w+ PASSED", result.stdout.str()) == [
        "rules/another.toml::another PASSED",
        "rules/clean.toml::clean PASSED",
    ]


def test_a_failure_is_the_text_report_without_a_traceback(project: pytest.Pytester) -> None:
    write(project, "dirty", "")
    result = run(project, "--ddplint")
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str()
    assert "dirty: 1 error; 2 parameters unused on every path, 2 undocumented" in text
    assert "DDP101 undocumented-unused (error) model.py:9 in Net.__init__" in text
    assert "Traceback" not in text
    assert "pytest_plugin.py" not in text


@pytest.mark.usefixtures("untraced")
def test_a_broken_rule_file_fails_in_one_line_and_the_others_are_checked(project: pytest.Pytester) -> None:
    write(project, "broken", "[[unused]]\n")
    result = run(project, "--ddplint")
    result.assert_outcomes(passed=1, failed=1)
    (line,) = [line for line in result.stdout.lines if line.startswith("error: ")]
    assert "rules/broken.toml" in line


@pytest.mark.usefixtures("untraced")
def test_a_file_that_is_no_toml_fails_under_its_stem(project: pytest.Pytester) -> None:
    (project.path / "rules" / "torn.toml").write_text("[checkpoint\n")
    result = run(project, "--ddplint", "-v")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["rules/torn.toml::torn FAILED*"])


@pytest.mark.usefixtures("untraced")
def test_rule_files_are_collected_beside_the_tests_that_are_named(project: pytest.Pytester) -> None:
    project.makepyfile(test_own="def test_own():\n    assert True\n")
    run(project, "--ddplint", "test_own.py").assert_outcomes(passed=2)


@pytest.mark.usefixtures("untraced")
def test_each_is_collected_once_where_the_whole_folder_is(project: pytest.Pytester) -> None:
    project.makepyfile(test_own="def test_own():\n    assert True\n")
    run(project, "--ddplint", ".").assert_outcomes(passed=2)


@pytest.mark.usefixtures("untraced")
def test_one_can_be_run_alone(project: pytest.Pytester) -> None:
    write(project, "dirty", "")
    run(project, "--ddplint", "rules/clean.toml").assert_outcomes(passed=1)
    run(project, "--ddplint", "rules/clean.toml::clean").assert_outcomes(passed=1)
    run(project, "--ddplint", "-k", "dirty").assert_outcomes(failed=1, deselected=1)


def test_without_the_option_nothing_is_collected(project: pytest.Pytester) -> None:
    project.makepyfile(test_own="def test_own():\n    assert True\n")
    run(project).assert_outcomes(passed=1)


@pytest.mark.usefixtures("untraced")
def test_toml_files_elsewhere_are_none_of_its_business(project: pytest.Pytester) -> None:
    (project.path / "data").mkdir()
    (project.path / "data" / "odd.toml").write_text("[x]\n")
    run(project, "--ddplint", ".").assert_outcomes(passed=1)


def test_a_project_without_rule_files_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\n")
    result = run(pytester, "--ddplint")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: ddplint: no rule files in *; `ddplint init` writes one*"])


def test_a_wrong_setting_is_refused(project: pytest.Pytester) -> None:
    project.makepyprojecttoml('[tool.ddplint]\ndevice = "tpu"\n')
    result = run(project, "--ddplint")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: ddplint: pyproject.toml*device*"])


# ---------------------------------------------------------------------- the fixture


def test_the_fixture_holds_a_type_against_its_rule_file(project: pytest.Pytester) -> None:
    project.makepyfile(test_own="def test_own(ddplint):\n    ddplint.assert_contract('clean')\n")
    run(project).assert_outcomes(passed=1)


def test_the_fixture_fails_with_the_report(project: pytest.Pytester) -> None:
    write(project, "dirty", "")
    project.makepyfile(test_own="def test_own(ddplint):\n    ddplint.assert_contract('dirty')\n")
    result = run(project)
    result.assert_outcomes(failed=1)
    assert "2 parameters of `old_head`" in result.stdout.str()
    assert "Traceback" not in result.stdout.str()


def test_the_fixture_takes_options(project: pytest.Pytester) -> None:
    write(project, "dirty", "")
    project.makepyfile(test_own="def test_own(ddplint):\n    ddplint.assert_contract('dirty', ignore=('DDP1',))\n")
    run(project).assert_outcomes(passed=1)


def test_an_unknown_type_is_one_line(project: pytest.Pytester) -> None:
    project.makepyfile(test_own="def test_own(ddplint):\n    ddplint.assert_contract('claen')\n")
    result = run(project)
    result.assert_outcomes(failed=1)
    assert any("no checkpoint type" in line and "clean" in line for line in result.stdout.lines)


def test_the_process_of_the_tests_stays_as_it_is(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_own="import random, sys, torch\n"
        "def test_own(ddplint):\n"
        "    torch.manual_seed(3)\n"
        "    random.seed(3)\n"
        "    before = torch.get_rng_state(), random.getstate(), list(sys.path)\n"
        "    ddplint.assert_contract('clean')\n"
        "    assert torch.equal(before[0], torch.get_rng_state())\n"
        "    assert before[1:] == (random.getstate(), list(sys.path))\n"
        "    assert 'model' not in sys.modules\n"
        "    assert not torch.distributed.is_initialized()\n"
    )
    run(project).assert_outcomes(passed=1)


def test_importing_the_plugin_imports_nothing_of_weight() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import ddplint.pytest_plugin; "
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['ddplint', 'ddplint.pytest_plugin']"
