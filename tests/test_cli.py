"""Options, exit codes, and what goes to stdout and to stderr.

Most tests put hand-made analyses in the worker's place; those at the end run the real command.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ddplint
from ddplint import cli, worker
from ddplint.analysis import Analysis, Step
from ddplint.checks import registry
from ddplint.errors import DdplintError
from ddplint.request import Request
from tests.made import analysis, line, unused, used

ROOT = Path(__file__).resolve().parent.parent
Call = Callable[..., tuple[int, str, str]]

RULES = """
[checkpoint]
name = "{name}"
[target]
factory = "{name}.py:build"
[[unused]]
params = ["spare"]
reason = "for later"
action = "allow"
"""


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """The command line, in process: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main(list(arguments))
        out, err = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, out, err

    return run


class Worker:
    """Stands for ``worker.run``: ``answers`` holds an analysis, or an exception, for each factory."""

    def __init__(self) -> None:
        self.answers: dict[str, Analysis | BaseException] = {}
        self.requests: list[Request] = []
        self.options: list[dict[str, Any]] = []

    def run(self, request: Request, **options: Any) -> Analysis:
        self.requests.append(request)
        self.options.append(options)
        answer = self.answers.get(request.target.factory, CLEAN)
        if isinstance(answer, BaseException):
            raise answer
        return answer


CLEAN = analysis(used("body.weight"), unused("spare.weight"))
WITH_FINDING = analysis(used("body.weight"), unused("spare.weight"), unused("head.weight", 9))


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Worker:
    """A project of two types, ``good`` and ``poor``, in the working folder; ``poor`` has an undocumented parameter."""
    fake = Worker()
    monkeypatch.setattr(worker, "run", fake.run)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules").mkdir()
    for name in ("good", "poor"):
        (tmp_path / "rules" / f"{name}.toml").write_text(RULES.format(name=name))
    fake.answers["poor.py:build"] = WITH_FINDING
    return fake


def test_version_and_help(call: Call) -> None:
    assert call("--version") == (0, f"ddplint {ddplint.__version__}\n", "")
    code, out, _ = call("--help")
    assert code == 0
    assert {"check", "why", "rule", "schema", "decode", "init"} <= set(out.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["check", "--bogus"],
        ["check", "--format", "jsn"],
        ["check", "--device", "cuda"],
        ["check", "--paths", "0"],
        ["check", "--timeout", "0"],
        ["check", "--timeout", "soon"],
        ["why"],
        ["init"],
    ],
)
def test_wrong_usage_exits_2(arguments: list[str], call: Call) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("Error: ")


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["check"], "rules: there are 2 checkpoint types; name one with --ckpt, or take --all: good, poor"),
        (["check", "--ckpt", "godo"], 'rules: no checkpoint type "godo", did you mean "good"? (there are: good, poor)'),
        (["check", "--all", "--ckpt", "good"], "--ckpt, --all and --target exclude each other; give one of them"),
        (["check", "--all", "--target", "x.py"], "--ckpt, --all and --target exclude each other; give one of them"),
        (["why", "x", "--ckpt", "a", "--target", "b"], "--ckpt and --target exclude each other; give one of them"),
        (["check", "--all", "--rules", "nowhere"], "--rules: no such folder: nowhere; name the folder of the rule files"),
        (["check", "--all", "--output", "no/x"], "no: no such folder; make it, or name another than no/x"),
        (["why", "spar.weight", "--ckpt", "good"], 'no parameter "spar.weight", did you mean "spare.weight"?; the model'),
        (["rule", "DDP1O1"], "rule: no rule 'DDP1O1'; did you mean DDP101? the rules are DDP101"),
        (["check", "--all", "--select", "DDP1,DDP8"], "--select: no rule 'DDP8'; "),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], error: str, call: Call) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith(f"error: {error}")


def test_exit_codes(traced: Worker, call: Call) -> None:
    assert call("check", "--ckpt", "good")[0] == 0
    assert call("check", "--ckpt", "poor")[0] == 1
    assert call("check", "--all")[0] == 1
    assert call("check", "--all", "--exit-zero")[0] == 0
    assert call("check", "--all", "--ignore", "DDP101")[0] == 0
    traced.answers["good.py:build"] = DdplintError("does not build")
    assert call("check", "--ckpt", "good")[0] == 2
    assert call("check", "--ckpt", "good", "--exit-zero")[0] == 2


def test_findings_of_severity_info_exit_0(traced: Worker, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    found = registry.run

    def informed(*arguments: Any) -> Any:
        return tuple(dataclasses.replace(finding, severity="info") for finding in found(*arguments))

    monkeypatch.setattr(registry, "run", informed)
    code, out, _ = call("check", "--ckpt", "poor", "--format", "json")
    assert [finding["severity"] for finding in json.loads(out)["results"][0]["findings"]] == ["info"]
    assert code == 0


def test_types_that_can_be_checked_are_reported_beside_one_that_can_not(traced: Worker, call: Call) -> None:
    traced.answers["good.py:build"] = DdplintError("does not build", where="good.py:3")
    (Path("rules") / "broken.toml").write_text("[checkpoint\n")
    code, out, err = call("check", "--all", "--format", "json", "--exit-zero")
    assert code == 2
    assert [result["ckpt"] for result in json.loads(out)["results"]] == ["poor"]
    first, second = err.splitlines()
    assert first == "error: good: good.py:3: does not build"
    assert second.startswith("error: rules/broken.toml:1: broken TOML")


def test_without_any_result_nothing_is_reported(traced: Worker, call: Call) -> None:
    Path("report.json").write_text("of yesterday")
    traced.answers["good.py:build"] = DdplintError("does not build")
    for output in ([], ["--output", "report.json"]):
        code, out, err = call("check", "--ckpt", "good", "--format", "json", *output)
        assert (code, out, err) == (2, "", "error: does not build\n")
    assert Path("report.json").read_text() == "of yesterday"


def test_stdout_has_the_report_alone(traced: Worker, call: Call) -> None:
    traced.answers["good.py:build"] = analysis(used("body.weight"), unused("spare.weight"), notices=("the mean stands in",))
    _, out, err = call("check", "--all", "--format", "json")
    assert json.loads(out)["schema_version"] == 1
    assert err == "note: good: the mean stands in\n"
    assert call("check", "--ckpt", "good", "--format", "json")[2] == "note: the mean stands in\n"
    assert call("check", "--ckpt", "good", "--quiet")[2] == ""


def test_progress_is_for_terminals(traced: Worker, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(monkeypatch)
    _, out, err = call("check", "--all")
    assert "checking good (1 of 2)" in err
    assert "checking poor (2 of 2)" in err
    assert "checking" not in out
    assert all(options["live"] for options in traced.options)
    assert call("check", "--all", "--quiet")[2] == ""
    monkeypatch.setenv("TERM", "dumb")
    assert call("check", "--all")[2] == ""
    assert traced.options[-1]["live"] is None


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stdout and stderr terminals of 100 columns, from here on."""
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.usefixtures("traced")
def test_a_terminal_gets_a_layout_and_anything_else_plain_text(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(monkeypatch)
    _, out, _ = call("check", "--ckpt", "poor")
    assert out.startswith("\x1b[1;31m✗ poor")
    monkeypatch.setenv("NO_COLOR", "1")
    _, out, _ = call("check", "--ckpt", "poor")
    assert out.startswith("\x1b[1m✗ poor")
    monkeypatch.setenv("TERM", "dumb")
    _, dumb, _ = call("check", "--ckpt", "poor")
    call("check", "--ckpt", "poor", "--output", "report.txt")
    assert dumb == Path("report.txt").read_text()
    assert dumb.startswith("poor: 1 error; 2 parameters unused on every path, 1 undocumented\n")


@pytest.mark.usefixtures("traced")
def test_force_color_lays_out_what_is_piped_unless_no_color_says_no(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    plain = call("check", "--ckpt", "poor")[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1;31m✗ poor" in call("check", "--ckpt", "poor")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert call("check", "--ckpt", "poor")[1] == plain
    assert json.loads(call("check", "--ckpt", "poor", "--format", "json")[1])["schema_version"] == 1


@pytest.mark.usefixtures("traced")
def test_quiet_is_silent_where_all_is_well(call: Call) -> None:
    assert call("check", "--ckpt", "good", "--quiet") == (0, "", "")
    code, out, err = call("check", "--all", "--quiet")
    assert (code, err) == (1, "")
    assert out.startswith("== poor\nDDP101 undocumented-unused (error)")
    assert "trainable parameters:" not in out


@pytest.mark.usefixtures("traced")
def test_statistics_count_by_code_and_by_cause(call: Call) -> None:
    code, out, _ = call("check", "--ckpt", "poor", "--statistics")
    assert code == 1
    rows = [row.split() for row in out.splitlines()]
    assert ["DDP101", "undocumented-unused", "(error)", "1", "1"] in rows
    assert ["never:", "uncalled", "2", "20", "80", "B", "67", "%"] in rows
    assert "fix:" not in out
    code, out, err = call("check", "--ckpt", "poor", "--statistics", "--format", "json")
    assert (code, out, err) == (2, "", "error: --statistics is for --format text; leave one of them out\n")


@pytest.mark.usefixtures("traced")
def test_verbose_lists_every_parameter(call: Call) -> None:
    _, out, _ = call("check", "--ckpt", "poor", "--verbose")
    listed = out.partition("\nparameters:\n")[2].splitlines()
    assert [row.split()[0] for row in listed] == ["body.weight", "spare.weight", "head.weight"]
    assert listed[1].split(None, 3)[3].startswith("never used (uncalled, observed)")
    assert listed[1].endswith("documented [allow]")
    assert out.startswith(call("check", "--ckpt", "poor")[1])


def test_show_settings_checks_nothing(traced: Worker, call: Call) -> None:
    Path("ddplint.toml").write_text('device = "meta"\n')
    code, out, err = call("check", "--show-settings", "--timeout", "7", "--ckpt", "nobody")
    assert (code, err) == (0, "")
    said = {row.split()[0]: row.split()[1:] for row in out.splitlines()}
    assert said["configuration"] == ["ddplint.toml"]
    assert said["device"] == ["meta", "ddplint.toml"]
    assert said["timeout"] == ["7", "s", "command", "line"]
    assert said["ranks"] == ["2", "default"]
    assert traced.requests == []


@pytest.mark.usefixtures("traced")
def test_list(call: Call) -> None:
    code, out, err = call("list")
    assert (code, err) == (0, "")
    assert [row.split()[:4] for row in out.splitlines()] == [
        ["good", "good.py:build", "rules/good.toml", "1"],
        ["poor", "poor.py:build", "rules/poor.toml", "1"],
    ]
    assert [entry["name"] for entry in json.loads(call("list", "--format", "json")[1])["types"]] == ["good", "poor"]
    Path("rules/broken.toml").write_text("[checkpoint\n")
    code, out, err = call("list")
    assert (code, len(out.splitlines())) == (2, 2)
    assert err.startswith("error: rules/broken.toml:1: broken TOML")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, call: Call) -> None:
    code, out, err = call("completion", shell)
    assert (code, err) == (0, "")
    assert f"_DDPLINT_COMPLETE={shell}_complete" in out
    assert "%(" not in out


def _completed(typed: str, monkeypatch: pytest.MonkeyPatch, call: Call) -> list[str]:
    """What bash offers for the last word of ``typed``."""
    monkeypatch.setenv("_DDPLINT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" ")) - 1))
    return [row.partition(",")[2] for row in call()[1].splitlines()]


@pytest.mark.usefixtures("traced")
def test_types_and_codes_complete(monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    assert _completed("ddplint check --ckpt ", monkeypatch, call) == ["good", "poor"]
    assert _completed("ddplint why --ckpt go", monkeypatch, call) == ["good"]
    assert _completed("ddplint rule ddp10", monkeypatch, call)[:2] == ["DDP101", "DDP102"]
    assert not any(_completed("ddplint check --rules nowhere --ckpt ", monkeypatch, call))
    Path("ddplint.toml").write_text("nonsense = 1\n")
    assert not any(_completed("ddplint check --ckpt ", monkeypatch, call))


def test_what_a_terminal_can_not_show_is_escaped(traced: Worker, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    place = line(3, "grün = self.größe  # → \ud800")
    traced.answers["good.py:build"] = analysis(unused("head.weight", location=place))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    assert call("check", "--ckpt", "good")[0] == 1
    assert "> grün = self.größe  # \\u2192 \\ud800" in written.getvalue().decode("latin-1")


def test_a_page_without_plotly_is_refused_before_a_trace(
    traced: Worker, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    code, out, err = call("check", "--ckpt", "good", "--format", "html")
    assert (code, out) == (2, "")
    assert err.startswith("error: --format html: ")
    assert err.endswith("pip install 'ddplint[html]'\n")
    assert traced.requests == []


CI_FORMATS = ("github", "gitlab", "junit", "markdown", "sarif")


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("format", CI_FORMATS)
def test_every_format_for_ci_goes_to_stdout_or_to_a_file_with_the_same_exit_code(format: str, call: Call) -> None:
    for name, code in (("poor", 1), ("good", 0)):
        printed = call("check", "--ckpt", name, "--format", format)
        assert (printed[0], printed[2]) == (code, "")
        assert call("check", "--ckpt", name, "--format", format, "--output", "report.x") == (code, "", "")
        assert Path("report.x").read_text() == printed[1] != ""
    assert call("check", "--ckpt", "poor", "--format", format, "--exit-zero")[0] == 0


@pytest.mark.parametrize("format", CI_FORMATS)
def test_what_can_not_be_checked_is_in_the_report_of_the_others(traced: Worker, call: Call, format: str) -> None:
    traced.answers["poor.py:build"] = DdplintError("build() raised KeyError", where="poor.py:3")
    code, out, err = call("check", "--all", "--format", format)
    assert (code, err) == (2, "error: poor: poor.py:3: build() raised KeyError\n")
    assert ("poor.py:3: build() raised KeyError" in out) is (format in ("github", "junit", "markdown"))


@pytest.mark.parametrize("format", CI_FORMATS)
def test_where_nothing_can_be_checked_there_is_no_report(traced: Worker, call: Call, format: str) -> None:
    traced.answers["poor.py:build"] = DdplintError("build() raised KeyError", where="poor.py:3")
    code, out, _ = call("check", "--ckpt", "poor", "--format", format, "--output", "report.x")
    assert (code, out, Path("report.x").exists()) == (2, "", False)


@pytest.mark.usefixtures("traced")
def test_the_summary_of_a_step_does_not_change_the_exit_code(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    assert call("check", "--ckpt", "poor", "--format", "github")[::2] == (1, "")
    assert Path("summary.md").read_text().startswith("## ddplint: 1 error")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "no/summary.md")
    code, out, err = call("check", "--ckpt", "poor", "--format", "github")
    assert (code, out.startswith("::error ")) == (1, True)
    assert (
        err == "note: no/summary.md: the job's summary can't be written: No such file or directory; see the report itself\n"
    )


def test_output_goes_to_a_file(traced: Worker, call: Call) -> None:
    assert call("check", "--ckpt", "poor", "--format", "github", "--output", "report.txt") == (1, "", "")
    assert Path("report.txt").read_text().startswith("::error file=")
    assert sorted(path.name for path in Path().iterdir()) == ["report.txt", "rules"]


def test_options_go_over_the_projects_settings(traced: Worker, call: Call) -> None:
    Path("ddplint.toml").write_text('device = "meta"\ntimeout = 7\nignore = ["DDP1"]\n')
    assert call("check", "--ckpt", "poor")[0] == 0
    assert (traced.requests[-1].device, traced.options[-1]["timeout"]) == ("meta", 7.0)
    changed = ["--device", "cpu", "--timeout", "2.5", "--ignore", "DDP2", "--paths", "3", "--ranks", "4", "--steps", "5"]
    assert call("check", "--ckpt", "poor", "--verbose", *changed)[0] == 1
    request = traced.requests[-1]
    assert (request.device, request.paths, request.ranks, request.steps) == ("cpu", 3, 4, 5)
    assert traced.options[-1] == {"timeout": 2.5, "verbose": True, "quiet": False, "live": None}


def test_the_defaults(traced: Worker, call: Call) -> None:
    call("check", "--ckpt", "good", "--no-cache")
    assert traced.requests == [
        Request(traced.requests[0].target, documented=("spare",), device="auto", paths=None, ranks=2, steps=3)
    ]
    assert traced.options == [{"timeout": 300.0, "verbose": False, "quiet": False, "live": None}]


def test_codes_are_a_list_with_commas(traced: Worker, call: Call) -> None:
    arguments = ["check", "--ckpt", "poor", "--format", "json"]
    assert call(*arguments, "--select", "DDP2, stale-rule")[0] == 0
    assert call(*arguments, "--select", "DDP2,undocumented-unused")[0] == 1
    assert call(*arguments, "--select", "DDP1", "--ignore", "ddp101,")[0] == 0


def test_a_bare_target_needs_no_rules(traced: Worker, call: Call) -> None:
    code, out, _ = call("check", "--target", "net.py", "--format", "json")
    assert code == 1
    (result,) = json.loads(out)["results"]
    assert result["ckpt"] is None
    (request,) = traced.requests
    assert (request.target.factory, request.target.from_module) == ("net.py:build", True)
    assert request.target.base == os.getcwd()


def test_why(traced: Worker, call: Call) -> None:
    way = (Step("linear", "spare", line(7), carries=False),)
    traced.answers["good.py:build"] = analysis(unused("spare.weight", cause="severed"), way=way, notices=("a note",))
    code, out, err = call("why", "--ckpt", "good", "weight")
    assert (code, err) == (0, "note: a note\n")
    assert out.startswith("spare.weight: never used; severed\n")
    assert [request.explain for request in traced.requests] == ["weight", "spare.weight"]


def _stdin(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_decode(traced: Worker, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    _stdin(monkeypatch, b"\xffParameter indices which did not receive grad for rank 1: 1\n")
    code, out, err = call("decode", "--ckpt", "good")
    assert (code, err) == (0, "")
    assert out.startswith("index 1, rank 1: spare.weight; uncalled (")
    assert len(out.splitlines()) == 1


def test_decode_refuses_another_text_before_a_trace(traced: Worker, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    _stdin(monkeypatch, b"CUDA out of memory")
    code, out, err = call("decode", "--ckpt", "good")
    assert (code, out) == (2, "")
    assert err.startswith("error: no DDP error in the text; ")
    assert traced.requests == []


def test_init_writes_a_rule_file_that_checks_clean(traced: Worker, call: Call) -> None:
    Path("net.py").write_text("def build(): ...\ndef inputs(): ...\n")
    assert call("init", "--target", "net.py") == (0, "", "note: wrote rules/net.toml\n")
    assert call("check", "--ckpt", "net")[0] == 0
    assert call("init", "--target", "net.py") == (
        2,
        "",
        "error: rules/net.toml: exists already; move it away, or choose another with --output\n",
    )
    assert call("init", "--target", "net.py", "--ckpt", "other", "--output", "rules/x.toml", "--quiet") == (0, "", "")
    assert call("check", "--ckpt", "other")[0] == 0


def test_rule_prints_a_page_or_the_list(call: Call) -> None:
    code, out, _ = call("rule", "ddp101")
    assert code == 0
    assert out.startswith("# DDP101 undocumented-unused (error)\n")
    code, out, _ = call("rule")
    assert code == 0
    codes = [row.split()[0] for row in out.splitlines()]
    assert codes == sorted(codes)
    assert {"DDP101", "DDP202", "DDP902"} <= set(codes)


def test_schema_is_json(call: Call) -> None:
    code, out, _ = call("schema")
    assert code == 0
    assert json.loads(out)["properties"]["checkpoint"]["type"] == "object"


def test_a_bug_is_one_line_and_its_traceback_an_option(traced: Worker, call: Call) -> None:
    traced.answers["good.py:build"] = KeyError("no such node")
    code, out, err = call("check", "--ckpt", "good")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("error: KeyError: 'no such node' (at ")
    assert "this is a bug of ddplint" in err
    err = call("check", "--ckpt", "good", "--debug")[2]
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.splitlines()[-1].startswith("error: KeyError: ")


def test_a_bug_about_one_type_does_not_hide_the_others(traced: Worker, call: Call) -> None:
    traced.answers["good.py:build"] = KeyError("no such node")
    code, out, err = call("check", "--all", "--format", "json")
    assert code == 2
    assert [result["ckpt"] for result in json.loads(out)["results"]] == ["poor"]
    assert err.startswith("error: good: KeyError: 'no such node' (at ")


def test_an_engines_bug_has_the_workers_traceback(traced: Worker, call: Call) -> None:
    traced.answers["good.py:build"] = worker.EngineError("KeyError: 'x'", traceback="Traceback of the worker\n")
    assert "Traceback" not in call("check", "--all")[2]
    assert call("check", "--all", "--debug")[2].startswith("Traceback of the worker\nerror: good: KeyError: 'x'; ")


def test_an_interruption_is_quiet(traced: Worker, call: Call) -> None:
    traced.answers["good.py:build"] = KeyboardInterrupt()
    code, out, err = call("check", "--ckpt", "good")
    assert (code, out, err.strip()) == (130, "", "")


TARGET = """
import sys, time, warnings
from pathlib import Path
import torch
from torch import nn

print("imported")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        print("forward", x.shape)
        sys.__stdout__.write("to the real stdout\\n")
        warnings.warn("old")
        return self.used(x).sum()

def build():
    return Net()

def inputs():
    return (torch.randn(2, 4),), {}
"""


def command(*arguments: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddplint", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120, **options},
    )


def test_the_real_command_keeps_a_targets_prints_off_stdout(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(TARGET)
    done = command("check", "--target", "net.py", "--format", "json", cwd=tmp_path)
    (result,) = json.loads(done.stdout)["results"]
    assert [entry["name"] for entry in result["unused"]] == ["spare.weight", "spare.bias"]
    assert result["trace"]["agrees_with_autograd"] is True
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert {"imported", "forward torch.Size([2, 4])", "to the real stdout"} <= set(said)
    assert [text for text in said if text.startswith("note: no loss given")]
    assert "warn" not in done.stderr


def test_the_parent_never_imports_torch(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(TARGET)
    code = """
        import sys
        heavy = {"torch", "networkx", "numpy", "rich"}
        import ddplint.cli
        print(sorted(heavy & set(sys.modules)), file=sys.stderr)
        try:
            ddplint.cli.main(["check", "--target", "net.py", "--quiet"])
        finally:
            print(sorted(heavy & set(sys.modules)), file=sys.stderr)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "undocumented-unused" in done.stdout
    assert done.stderr == "[]\n[]\n"
    assert done.returncode == 1


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = command("rule", "DDP101", cwd=ROOT, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = command("rule", "DDP101", cwd=ROOT, stdout=full)
    assert (done.returncode, done.stderr) == (2, "error: stdout: can't be written: No space left on device\n")


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The real command on a target that hangs, and has said so in a file."""
    (tmp_path / "net.py").write_text(
        "import os, pathlib, time\npathlib.Path('new').write_text(str(os.getpid()))\n"
        "os.rename('new', 'pid')\ntime.sleep(1000)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "ddplint", "check", "--target", "net.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    yield process
    process.kill()
    process.communicate()


def test_ctrl_c_is_quiet_and_leaves_nothing(hanging: subprocess.Popen[str], tmp_path: Path) -> None:
    hanging.send_signal(signal.SIGINT)
    out, err = hanging.communicate(timeout=20)
    assert (hanging.returncode, out, err.strip()) == (130, "", "")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
