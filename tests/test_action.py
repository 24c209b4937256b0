"""action.yml, run: its shell steps by bash, with programs that write down how they were called."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddplint.report import FORMATS

ROOT = Path(__file__).resolve().parent.parent
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{\s*inputs\.([\w-]+)\s*\}\}")

STUB = f"""#!{sys.executable}
import json, os, pathlib, sys
call = [pathlib.Path(sys.argv[0]).name, os.getcwd(), *sys.argv[1:]]
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps(call) + "\\n")
if call[0] == "ddplint":
    print("::error title=x::y")
    status = pathlib.Path(os.environ["CALLS"]).with_name("status")
    code = int(status.read_text()) if status.exists() else 0
    for option in sys.argv:
        if option.startswith("--output=") and code < 2:
            pathlib.Path(option.removeprefix("--output=")).write_text("report")
    sys.exit(code)
"""

NASTY = "a b'; touch pwned; $(touch pwned) `touch pwned` \" && touch pwned #"


@dataclass(frozen=True)
class Ran:
    """What the action did: its exit code, the calls of each program, what it printed, its outputs."""

    code: int
    calls: dict[str, list[list[str]]]
    printed: str
    outputs: dict[str, str]
    folder: Path

    @property
    def options(self) -> list[str]:
        """The command line of ddplint."""
        (call,) = self.calls["ddplint"]
        return call[1:]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A scratch folder with stubs of python and ddplint in ``bin``, a ``project`` and the runner's ``temp``."""
    for name in ("bin", "project", "temp"):
        (tmp_path / name).mkdir()
    for name in ("python", "ddplint"):
        (tmp_path / "bin" / name).write_text(STUB)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def run(folder: Path, /, **inputs: str) -> Ran:
    """The action's shell steps, one after the other while they succeed, as the runner does it.

    The stub of ddplint ends with the exit code that the file ``status`` in ``folder`` holds, 0 without one.
    """
    given = {name: entry.get("default", "") for name, entry in ACTION["inputs"].items()}
    given |= {name.replace("_", "-"): value for name, value in inputs.items()}
    calls, outputs = folder / "calls", folder / "outputs"
    calls.touch()
    outputs.touch()
    code, printed = 0, ""
    for step in STEPS:
        if "run" not in step or code:
            continue
        own = {name: EXPRESSION.sub(lambda found: given[found[1]], value) for name, value in step["env"].items()}
        path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        runner = {"RUNNER_TEMP": str(folder / "temp"), "GITHUB_OUTPUT": str(outputs), "GITHUB_ACTION_PATH": str(ROOT)}
        script = folder / "step.sh"
        script.write_text(step["run"])
        where = EXPRESSION.sub(lambda found: given[found[1]], step.get("working-directory", "."))
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],  # what `shell: bash` means to the runner
            cwd=folder / "project" / where,
            env={"PATH": path, "CALLS": str(calls), **runner, **own},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        code, printed = done.returncode, printed + done.stdout
    said: dict[str, list[list[str]]] = {"python": [], "ddplint": []}
    for line in calls.read_text().splitlines():
        name, *call = json.loads(line)
        said[name].append(call)
    written = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
    return Ran(code, said, printed, written, folder)


def test_no_script_contains_an_expression() -> None:
    scripts = [step["run"] for step in STEPS if "run" in step]
    assert len(scripts) == 2
    assert not [script for script in scripts if "${{" in script]


def test_every_input_is_used_and_explained() -> None:
    text = json.dumps(ACTION["runs"])
    for name, entry in ACTION["inputs"].items():
        assert f"inputs.{name}" in text
        assert entry["description"]


def test_actions_are_pinned_by_major_version() -> None:
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", name) for name in used)


def test_outputs_are_those_of_the_check() -> None:
    values = [output["value"] for output in ACTION["outputs"].values()]
    assert values == [f"${{{{ steps.check.outputs.{name} }}}}" for name in ACTION["outputs"]]
    assert [step["id"] for step in STEPS if "id" in step] == ["check"]


def test_by_default_every_type_is_checked_with_the_actions_own_ddplint(folder: Path) -> None:
    ran = run(folder)
    assert ran.options == ["check", "--format=github", "--all"]
    ((_, *pip),) = ran.calls["python"]
    assert (pip[:3], pip[-1]) == (["-m", "pip", "install"], str(ROOT))
    assert ran.outputs == {"exit-code": "0", "report": str(folder / "temp" / "ddplint.txt")}


def test_annotations_are_printed_and_kept(folder: Path) -> None:
    ran = run(folder)
    assert "::error title=x::y" in ran.printed.splitlines()
    assert Path(ran.outputs["report"]).read_text() == "::error title=x::y\n"


@pytest.mark.parametrize("status", [0, 1, 2])
@pytest.mark.parametrize("format", ["github", "sarif"])
def test_the_exit_code_is_ddplints_and_an_output(folder: Path, status: int, format: str) -> None:
    (folder / "status").write_text(str(status))
    ran = run(folder, format=format)
    assert (ran.code, ran.outputs["exit-code"]) == (status, str(status))
    assert ("report" in ran.outputs) is (format == "github" or status < 2)


@pytest.mark.parametrize("format", sorted({*FORMATS} - {"github", "text"}))
def test_other_formats_go_into_the_report_alone(folder: Path, format: str) -> None:
    (folder / "project" / "out").mkdir()
    ran = run(folder, format=format, output="out/report.x")
    assert ran.options == ["check", f"--format={format}", "--all", f"--output={folder}/project/out/report.x"]
    assert ran.outputs["report"] == f"{folder}/project/out/report.x"


def test_a_report_is_named_after_its_format(folder: Path) -> None:
    endings = {"github": "txt", "gitlab": "json", "html": "html", "junit": "xml", "markdown": "md", "sarif": "sarif"}
    for format, ending in endings.items():
        (folder / "calls").unlink(missing_ok=True)
        assert run(folder, format=format).outputs["report"] == str(folder / "temp" / f"ddplint.{ending}")


def test_inputs_become_options(folder: Path) -> None:
    ran = run(folder, ckpt="hybrid\n  cmim", rules="my rules", args="--exit-zero  --select\nDDP1,DDP2", all="false")
    named = ["--ckpt=hybrid", "--ckpt=cmim", "--rules=my rules"]
    assert ran.options == ["check", "--format=github", *named, "--exit-zero", "--select", "DDP1,DDP2"]


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        ({"target": "a b.py:build"}, ["--target=a b.py:build"]),
        ({"ckpt": "hybrid", "all": "true"}, ["--ckpt=hybrid", "--all"]),
        ({"all": "false"}, []),
        ({"ckpt": "--exit-zero"}, ["--ckpt=--exit-zero"]),
    ],
)
def test_what_is_checked(folder: Path, inputs: dict[str, str], options: list[str]) -> None:
    assert run(folder, **inputs).options == ["check", "--format=github", *options]


def test_the_working_directory_is_the_projects(folder: Path) -> None:
    (folder / "project" / "models").mkdir()
    ran = run(folder, working_directory="models", output="r")
    assert ran.calls["ddplint"][0][0] == str(folder / "project" / "models")
    assert ran.outputs["report"] == str(folder / "project" / "models" / "r")


@pytest.mark.parametrize(
    ("version", "asked"), [("0.1.0", ["ddplint==0.1.0"]), ("1.0rc1", ["ddplint==1.0rc1"]), ("installed", [])]
)
def test_the_version_that_is_installed(folder: Path, version: str, asked: list[str]) -> None:
    assert [call[-1] for call in run(folder, version=version).calls["python"]] == asked


@pytest.mark.parametrize("version", [NASTY, "0.1.0 --index-url http://x", "0.1.0\n", "*", "@ file:///x"])
def test_a_version_that_is_none_is_refused(folder: Path, version: str) -> None:
    ran = run(folder, version=version)
    assert (ran.code, ran.calls["python"], ran.calls["ddplint"]) == (2, [], [])
    assert ran.printed.startswith("::error title=ddplint::version: ")


@pytest.mark.parametrize("name", ["target", "rules", "format"])
def test_a_value_with_shell_in_it_is_one_argument(folder: Path, name: str) -> None:
    ran = run(folder, **{name: NASTY})
    assert f"--{name}={NASTY}" in ran.options
    assert not list(folder.rglob("pwned"))


@pytest.mark.parametrize("name", ["ckpt", "args"])
def test_a_list_with_shell_in_it_is_its_words(folder: Path, name: str) -> None:
    (folder / "project" / "file").touch()
    ran = run(folder, **{name: f"{NASTY} * ~ $HOME"})
    words = f"{NASTY} * ~ $HOME".split()
    assert ran.options[-len(words) :] == (words if name == "args" else [f"--ckpt={word}" for word in words])
    assert not list(folder.rglob("pwned"))


def test_an_output_with_shell_in_it_is_a_file_name(folder: Path) -> None:
    ran = run(folder, output=NASTY)
    assert ran.outputs["report"] == f"{folder}/project/{NASTY}"
    assert Path(ran.outputs["report"]).read_text() == "::error title=x::y\n"
    assert not list(folder.rglob("pwned"))


def test_an_output_cannot_write_further_outputs(folder: Path) -> None:
    ran = run(folder, output="a\nexit-code=0")
    assert (ran.code, ran.outputs, ran.calls["ddplint"]) == (2, {}, [])


def test_all_is_true_or_false(folder: Path) -> None:
    assert run(folder, all=NASTY).code == 2
