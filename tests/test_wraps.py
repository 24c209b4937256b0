"""``ddplint wraps`` and ``ddplint fix``: the join with verdicts, the edits, the command line. No target is run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddplint import cli, worker, wraps
from ddplint.analysis import Analysis
from ddplint.callsites.find import find
from ddplint.checks.base import Case
from ddplint.request import Request
from tests.made import analysis, rehearsal, unused, used

Call = Callable[..., tuple[int, str, str]]

RULES = """
[checkpoint]
name = "{name}"
[target]
factory = "{name}.py:build"
{ddp}
"""

TRAIN = """\
# trains\r
from torch.nn.parallel import DistributedDataParallel as DDP\r
\r
def main(model, args):\r
    model = DDP(model, find_unused_parameters=True)  # é, for the heads\r
    model = DDP(model, find_unused_parameters=args.search)\r
    return DDP(model)"""

FINE = analysis(used("a.w"), rehearsal=rehearsal())
NEEDS = analysis(used("a.w"), unused("b.w"), rehearsal=rehearsal("reduction_error", "ok", frozen="ok"))
UNSURE = analysis(used("a.w"), rehearsal=rehearsal(), complete=False)
VARIES = analysis(used("a.w"), unused("b.w", usage="sometimes"), rehearsal=rehearsal())


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


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Analysis]:
    """A project with a training script; by the type's name what its trace would find."""
    answers: dict[str, Analysis] = {}

    def run(request: Request, **options: Any) -> Analysis:
        return answers[request.target.factory.partition(".")[0]]

    monkeypatch.setattr(worker, "run", run)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_bytes(TRAIN.encode())
    return answers


def rule_file(name: str, ddp: str = "") -> None:
    Path("rules").mkdir(exist_ok=True)
    Path("rules", f"{name}.toml").write_text(RULES.format(name=name, ddp=f"[ddp]\n{ddp}\n" if ddp else ""))


LIST = """\
train.py:5:13  call  DDP  on (True)
train.py:6:13  call  DDP  unknown (args.search)
train.py:7:12  call  DDP  off
3 wraps in 1 file: 1 on, 1 off, 1 unknown
"""


@pytest.mark.usefixtures("verdicts")
def test_wraps_are_listed_without_a_verdict(call: Call) -> None:
    assert call("wraps") == (0, LIST, "")
    assert call("wraps", "train.py") == (0, LIST, "")


@pytest.mark.usefixtures("verdicts")
def test_the_list_as_json(call: Call) -> None:
    code, out, _ = call("wraps", "--format", "json")
    document = json.loads(out)
    assert code == 0
    assert (document["schema_version"], document["files"], document["results"]) == (1, 1, [])
    assert document["wraps"][0] == {
        "file": "train.py",
        "line": 5,
        "column": 13,
        "form": "call",
        "callee": "DDP",
        "find_unused_parameters": {"state": "on", "expression": "True"},
        "static_graph": {"state": "off", "expression": ""},
        "fixable": True,
    }


def test_a_needless_flag_is_reported_under_the_list(call: Call, verdicts: dict[str, Analysis]) -> None:
    rule_file("small")
    verdicts["small"] = FINE
    code, out, err = call("wraps", "--ckpt", "small")
    assert (code, err) == (1, "")
    assert out.startswith(
        f"{LIST}\nsmall: find_unused_parameters not-needed\ntrain.py:5: DDP301 needless-find-unused (warning)\n"
    )
    assert "DDP302" not in out


def test_a_missing_flag_is_reported_as_json(call: Call, verdicts: dict[str, Analysis]) -> None:
    rule_file("small")
    verdicts["small"] = NEEDS
    code, out, _ = call("wraps", "--all", "--format", "json")
    (result,) = json.loads(out)["results"]
    assert code == 1
    assert (result["ckpt"], result["find_unused_parameters"]) == ("small", "needed")
    (finding,) = result["findings"]
    assert (finding["code"], finding["location"]) == ("DDP302", {"file": "train.py", "line": 7})


def test_a_wrap_of_another_types_source_is_not_judged(call: Call, verdicts: dict[str, Analysis]) -> None:
    Path("other.py").write_text("import torch\ntorch.nn.parallel.DistributedDataParallel(m)\n")
    rule_file("small", 'source = "other.py"')
    verdicts["small"] = FINE
    assert call("wraps", "--ckpt", "small")[0] == 0


@pytest.mark.usefixtures("verdicts")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["wraps", "gone"], "error: gone: no such file or folder\n"),
        (["wraps", "--ckpt", "x", "--all"], "error: --ckpt, --all and --target exclude each other; give one of them\n"),
        (["fix", "--ckpt", "x", "--all"], "error: --ckpt, --all and --target exclude each other; give one of them\n"),
        (["fix"], "error: ddplint fix: no verdict to go by: no rule file says where its model is wrapped; "),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], says: str, call: Call) -> None:
    rule_file("small")
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(says)
    assert err.count("\n") == 1


@pytest.mark.usefixtures("verdicts")
def test_a_broken_file_is_a_notice_and_2_if_it_was_named(call: Call) -> None:
    Path("broken.py").write_text("DistributedDataParallel(\n")
    code, out, err = call("wraps")
    assert (code, out) == (0, LIST)
    assert err == "note: broken.py:1: not Python: '(' was never closed\n"
    assert call("wraps", "train.py", "broken.py")[0] == 2


def test_fix_shows_and_makes_the_edit_once(call: Call, verdicts: dict[str, Analysis]) -> None:
    rule_file("small", 'source = "train.py"')
    verdicts["small"] = FINE
    code, out, err = call("fix", "--diff")
    assert (code, err) == (1, "")
    assert Path("train.py").read_bytes() == TRAIN.encode()
    assert [line for line in out.splitlines() if line[:1] in "+-"] == [
        "--- a/train.py",
        "+++ b/train.py",
        "-    model = DDP(model, find_unused_parameters=True)  # é, for the heads",
        "+    model = DDP(model, find_unused_parameters=False)  # é, for the heads",
    ]
    assert out.endswith("     return DDP(model)\n\\ No newline at end of file\n")
    assert call("fix") == (0, "train.py:5:13  True -> False\n", "")
    assert Path("train.py").read_bytes() == TRAIN.replace("=True", "=False").encode()
    assert call("fix") == (0, "nothing to turn off\n", "")
    assert call("fix", "--diff") == (0, "", "")
    assert sorted(path.name for path in Path().iterdir()) == ["rules", "train.py"]


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (NEEDS, "needs it"),
        (analysis(used("a.w"), rehearsal=rehearsal("ready_twice", "ready_twice")), "fails with it on and off"),
        (UNSURE, "is incomplete: not every path was traced"),
        (VARIES, "uses other parameters on other paths"),
        (analysis(used("a.w")), "was not rehearsed"),
    ],
)
def test_what_is_not_proven_is_left_on(verdict: Analysis, reason: str, call: Call, verdicts: dict[str, Analysis]) -> None:
    rule_file("big")
    rule_file("small")
    verdicts.update(small=FINE, big=verdict)
    code, out, err = call("fix", "--all")
    assert (code, out) == (0, "nothing to turn off\n")
    assert err == f"note: train.py:5:13 is left on: big {reason}\n"
    assert Path("train.py").read_bytes() == TRAIN.encode()
    assert call("fix", "--ckpt", "small", "--diff")[0] == 1


def test_an_expression_is_left_on_with_the_reason(call: Call, verdicts: dict[str, Analysis]) -> None:
    Path("train.py").write_text(
        "import torch\nON = True\ntorch.nn.parallel.DistributedDataParallel(m, find_unused_parameters=ON)\n"
    )
    rule_file("small")
    verdicts["small"] = FINE
    code, out, err = call("fix", "--ckpt", "small")
    assert (code, out) == (0, "nothing to turn off\n")
    assert err == "note: train.py:3:1 is left on: its value is an expression or has other readers\n"


def test_check_takes_the_wraps_from_the_source(call: Call, verdicts: dict[str, Analysis]) -> None:
    rule_file("small", 'source = ["train.py"]')
    verdicts["small"] = FINE
    code, out, _ = call("check", "--format", "github")
    assert code == 1
    assert out.startswith("::warning file=train.py,line=5,title=DDP301 needless-find-unused::small: train.py:5 `")
    assert "Turn the flag off" in call("check")[1]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("gone.py", "error: rules/small.toml: ddp.source: no such file: 'gone.py' in "),
        ("broken.py", "error: broken.py:1: not Python: "),
    ],
)
def test_check_refuses_a_source_that_cant_be_read(source: str, says: str, call: Call, verdicts: dict[str, Analysis]) -> None:
    Path("broken.py").write_text("DistributedDataParallel(\n")
    rule_file("small", f'source = "{source}"')
    verdicts["small"] = FINE
    code, out, err = call("check")
    assert (code, out) == (2, "")
    assert err.startswith(says)


def test_check_says_that_a_source_has_no_wrap(call: Call, verdicts: dict[str, Analysis]) -> None:
    Path("empty.py").touch()
    rule_file("small", 'source = "empty.py"')
    verdicts["small"] = FINE
    code, _, err = call("check")
    assert (code, err) == (0, "note: no DDP wrap is found in empty.py ([ddp] source)\n")


PIECES = {
    "run.sh": ("python a.py --ddp_find_unused_parameters {}  # é\n", "# --ddp_find_unused_parameters True\n", "x=1\r\n"),
    "conf.yaml": (
        "s{n}:\n  _target_: accelerate.DistributedDataParallelKwargs\n  find_unused_parameters: {}\n",
        "# é\n",
        "k{n}: 1\n",
    ),
    "train.py": (
        "D(m, find_unused_parameters={})  # é\n",
        "D(m, find_unused_parameters=not True)\n",
        "'''D(m, find_unused_parameters=True)'''\n",
        "kw = dict(x=1); D(m, **dict(find_unused_parameters={}))\n",
    ),
}


@pytest.mark.parametrize("name", PIECES)
@settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_fix_changes_the_literals_alone_and_is_idempotent(name: str, data: st.DataObject, tmp_path: Path) -> None:
    pieces = data.draw(st.lists(st.sampled_from(PIECES[name]), max_size=8))
    newline = data.draw(st.sampled_from(["\n", "\r\n"]))
    head = "from torch.nn.parallel import DistributedDataParallel as D\n" if name.endswith(".py") else ""
    texts = []
    for flag in ("True", "False"):
        lines = [piece.replace("{n}", str(number)).replace("{}", flag) for number, piece in enumerate(pieces)]
        texts.append((head + "".join(lines)).replace("\r\n", "\n").replace("\n", newline).encode())
    path = tmp_path / name
    path.write_bytes(texts[0])
    for _ in range(2):
        found = find([path])
        wraps.write(wraps.fixed(found, [wraps.Judged("made", Case(FINE, None, found.wraps), (), ())]))
        assert path.read_bytes() == texts[1]
