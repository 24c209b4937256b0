"""Real processes beside the rehearsal: each outcome, what is left out or can't be run, and the command.

Most tests hand jobs to one pair of running agents; those about the analysis and the command start their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddplint import cli, verify
from ddplint.analyse import _plain
from ddplint.analysis import Rehearsal
from ddplint.checking import Options, Subject, bare_target, chosen
from ddplint.config import find_project
from ddplint.errors import DdplintError
from ddplint.rules import TargetSpec
from ddplint.trace.values import Fork, Plan
from ddplint.verify import SETTINGS, Job, Launch, Ranks, Real, Verified
from ddplint.verify_agent import Decision, Judge, late
from ddplint.verify_rank import NATURAL, Status, plan_of, schedule
from tests.made import analysis, used

ROOT = Path(__file__).resolve().parent.parent
OFF, ON, STATIC = SETTINGS
PLAIN: dict[str, Any] = {"inputs": 0, "seed": 0, "answers": [], "rank": 0}
OPTIONS = Options(timeout=60.0)

HEAD = """
import os, random, subprocess, time
import torch
import torch.distributed as dist
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        y = self.a(x)
        {forward}

def build():
    return Model()

def inputs():
    return (torch.ones(1, 2),), {{}}

def zeros():
    return (torch.zeros(1, 2),), {{}}

def variants():
    return [{variants}]

def loss(output):
    return output.sum()
"""


def model(forward: str, variants: str = "inputs") -> str:
    """A target file: linear layers ``a`` and ``b``, and the end of forward after ``y = self.a(x)``."""
    body = textwrap.indent(textwrap.dedent(forward).strip(), " " * 8).strip()
    return HEAD.format(forward=body, variants=variants)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Two ranks that all tests of the module share."""
    with verify.started(OPTIONS, None) as running:
        yield running


def job(
    folder: Path,
    text: str,
    *plans: dict[str, Any],
    settings: tuple[str, ...] = tuple(SETTINGS),
    limit: float = 60.0,
    iterations: int | None = None,
) -> Job:
    (folder / "net.py").write_text(text)
    target = TargetSpec("net.py:build", base=str(folder), from_module=True)
    plans = plans or (PLAIN,)
    return Job(target, list(plans), len(plans) + 2, iterations, limit, settings)


def outcomes(ranks: Ranks, job: Job) -> dict[str, Real]:
    return {real.setting: real for real in ranks.run(job, lambda setting, real: None)}


def words(found: dict[str, Real]) -> list[str]:
    return [real.outcome for real in found.values()]


def line_of(job: Job, text: str) -> int:
    lines = Path(job.target.base, "net.py").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return number


# ---------------------------------------------------------------------- what real ranks do


def test_every_parameter_used(ranks: Ranks, tmp_path: Path) -> None:
    found = outcomes(ranks, job(tmp_path, model("return self.b(y)")))
    assert [dataclasses.replace(real, seconds=0.0) for real in found.values()] == [
        Real(setting, "ok", "", 2 + 1 + NATURAL, "gloo", 0.0) for setting in SETTINGS
    ]
    assert all(0 < real.seconds < 60 for real in found.values())


def test_the_number_of_iterations_can_be_given(ranks: Ranks, tmp_path: Path) -> None:
    found = outcomes(ranks, job(tmp_path, model("return y"), iterations=1))
    assert words(found) == ["ok", "ok", "ok"]  # the error comes one forward late
    assert found[OFF].iterations == 1


def test_the_reducers_error_with_rank_and_iteration(ranks: Ranks, tmp_path: Path) -> None:
    found = outcomes(ranks, job(tmp_path, model("return y")))
    assert words(found) == ["reduction_error", "ok", "ok"]
    assert found[OFF].detail.startswith("rank 0, iteration 2: RuntimeError: Expected to have finished reduction in")
    assert "\n" not in found[OFF].detail


def test_ready_twice(ranks: Ranks, tmp_path: Path) -> None:
    found = outcomes(
        ranks,
        job(
            tmp_path,
            model("return self.b(y)")
            .replace("output.sum()", "output['y'].sum()")
            .replace(
                "return self.b(y)", "import collections; box = collections.UserDict(); box['y'] = self.b(y); return box"
            ),
        ),
    )
    assert found[ON].outcome == "ready_twice"
    assert found[ON].detail.startswith("rank 0, iteration 1: RuntimeError: Expected to mark a variable ready only once.")
    assert found[OFF].outcome == "ok"


def forced(tmp_path: Path, text: str, read: str, domain: Any, answer: bool | str) -> dict[str, Any]:
    """The plan that forces ``answer`` where the expression ``read`` is read, on the one line with ``# here``."""
    made = job(tmp_path, text)
    number = line_of(made, "# here")
    first = (tmp_path / "net.py").read_text(encoding="utf-8").splitlines()[number - 1].index(read)
    fork = Fork(domain, str(tmp_path / "net.py"), number, "Model.forward", (first, first + len(read)))
    plan: dict[str, Any] = json.loads(json.dumps(_plain(Plan(answers=((fork, answer),)))))
    assert plan_of(plan) == Plan(answers=((fork, answer),))
    return plan


@pytest.mark.parametrize(
    ("condition", "read", "domain", "answer"),
    [
        ("y.sum() > 1e6", "y.sum() > 1e6", "bool", True),
        ("random.random() > 1 - 1e-9", "random.random()", "draw", "high"),
    ],
)
def test_a_path_that_only_a_forced_answer_takes(
    condition: str, read: str, domain: str, answer: bool | str, ranks: Ranks, tmp_path: Path
) -> None:
    text = model(f"if {condition}:  # here\n    y = self.b(y)\nreturn y")
    assert words(outcomes(ranks, job(tmp_path, text))) == ["reduction_error", "ok", "ok"]
    plan = forced(tmp_path, text, read, domain, answer)
    assert words(outcomes(ranks, job(tmp_path, text, PLAIN, plan))) == ["reduction_error", "ok", "reduction_error"]


def test_variants_and_seeds_beyond_the_rehearsed_paths_are_run_too(ranks: Ranks, tmp_path: Path) -> None:
    text = model("return self.b(y) if x.sum() > 0 else y", variants="inputs, zeros")
    assert words(outcomes(ranks, job(tmp_path, text))) == ["reduction_error", "ok", "reduction_error"]


def test_a_branch_on_the_rank_hangs_and_the_line_is_named(ranks: Ranks, tmp_path: Path) -> None:
    made = job(tmp_path, model("y = self.b(y)\nif dist.get_rank() == 1:\n    dist.barrier()\nreturn y"), settings=(OFF,))
    start = time.monotonic()
    found = outcomes(ranks, made)
    assert words(found) == ["hang"]
    place = f"net.py:{line_of(made, 'dist.barrier()')} (dist.barrier())"
    assert f"rank 1 waits in forward of iteration 1 at {tmp_path}/{place}" in found[OFF].detail
    assert "rank 0 waits in backward of iteration 1" in found[OFF].detail
    assert time.monotonic() - start < made.limit


def test_collectives_of_different_sizes_hang(ranks: Ranks, tmp_path: Path) -> None:
    text = model("y = self.b(y)\nif dist.get_rank() == 0:\n    dist.all_reduce(torch.zeros(1))\nreturn y")
    found = outcomes(ranks, job(tmp_path, text, settings=(OFF,)))
    assert words(found) == ["hang"]
    assert "gloo ended it, for the ranks' collectives differ in size" in found[OFF].detail


def test_a_rank_that_uses_nothing_leaves_the_other_waiting(ranks: Ranks, tmp_path: Path) -> None:
    text = model("y = self.b(y)\nreturn y if x.sum() > 0 else y.detach() + torch.zeros(1, 2, requires_grad=True)", "zeros")
    found = outcomes(ranks, job(tmp_path, text, PLAIN, {**PLAIN, "inputs": 1}, settings=(OFF,)))
    assert words(found) == ["hang"]
    assert found[OFF].detail == "rank 0 waits in backward of iteration 1; rank 1 is done with iteration 1"


def test_a_path_that_raises_is_left_out(ranks: Ranks, tmp_path: Path) -> None:
    text = model("if x.sum() == 0:\n    raise KeyError('no such atom')\nreturn self.b(y)", "inputs, zeros")
    found = outcomes(ranks, job(tmp_path, text, PLAIN, {**PLAIN, "inputs": 1}))
    assert words(found) == ["ok", "ok", "ok"]
    for real in found.values():
        assert real.detail.startswith("a path was left out, for it raises under DDP (rank ")
        assert "in forward of iteration 1: KeyError: 'no such atom'" in real.detail


# ---------------------------------------------------------------------- what can't be run


@pytest.mark.parametrize(
    ("forward", "error"),
    [
        (
            "raise KeyError('no such atom')",
            "rank 0, in forward of iteration 1: KeyError: 'no such atom'; it runs without DDP",
        ),
        ("os._exit(3)", "the process of rank 0 left with exit code 3, in forward of iteration 1"),
        ("os.abort()", "the process of rank 0 was ended by SIGABRT, in forward of iteration 1"),
    ],
)
def test_a_target_that_does_not_run_under_ddp(forward: str, error: str, ranks: Ranks, tmp_path: Path) -> None:
    with pytest.raises(DdplintError) as caught:
        outcomes(ranks, job(tmp_path, model(forward)))
    assert str(caught.value).startswith(f"net.py:build: {OFF}: {error}")


def test_a_target_that_computes_for_ever_is_no_hang(ranks: Ranks, tmp_path: Path) -> None:
    made = job(tmp_path, model("while dist.get_rank() == 0:\n    y = y + 1\nreturn self.b(y)"), limit=4.0)
    with pytest.raises(DdplintError) as caught:
        outcomes(ranks, made)
    assert str(caught.value).startswith(f"net.py:build: {OFF}: no end after 4 s: rank 0 was in forward of iteration 1")
    assert str(caught.value).endswith("raise --timeout, or give it smaller example inputs")


def test_nothing_that_a_target_starts_is_left(ranks: Ranks, tmp_path: Path) -> None:
    text = model(
        f"""
        if dist.get_rank() == 0:
            started = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            with open({str(tmp_path / "pids")!r}, "a") as file:
                file.write(f"{{started.pid}} {{os.getpid()}}\\n")
            dist.barrier()
        return self.b(y)
        """
    )
    assert words(outcomes(ranks, job(tmp_path, text, settings=(OFF, ON)))) == ["hang", "hang"]
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 4
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_ranks_that_do_not_meet_are_an_error() -> None:
    launch = Launch(0, 2, host="localhost", port=1, patience=1.0)
    with (
        verify.started(OPTIONS, launch) as lonely,
        pytest.raises(DdplintError, match=r"^localhost:1: the ranks can't meet: "),
    ):
        list(lonely.run(Job(TargetSpec("net.py:build"), [PLAIN], 3, None, 60.0), lambda setting, real: None))


# ---------------------------------------------------------------------- the judge


def status(state: Any, iteration: int = 1, **others: Any) -> Status:
    return Status(state, iteration, others.pop("stage", "backward"), **others)


def settle(judge: Judge, *statuses: Status) -> Decision | str | None:
    """What the judge says when the waiting ranks have been seen to wait for long enough."""
    for beat in range(5):
        moved = [dataclasses.replace(s, beat=s.beat + beat) if s.state == "waiting" else s for s in statuses]
        if (verdict := judge.look(moved)) is not None:
            return verdict
    return None


def test_a_rank_that_runs_or_has_not_begun_is_waited_for() -> None:
    assert settle(Judge(), status("waiting"), status("running")) is None
    assert Judge().look([status("ok"), None]) is None


def test_ranks_begin_an_iteration_together() -> None:
    judge = Judge()
    assert judge.look([status("done"), status("done")]) == "on"
    assert judge.look([status("done"), status("done")]) is None  # they have been told
    assert judge.look([status("done", 2), status("done", 2)]) == "on"
    assert judge.look([status("ok", 2), status("ok", 2)]) == Decision("ok", iterations=2)


def test_a_rank_waits_for_ever_only_if_it_still_does_when_the_others_are_at_rest() -> None:
    judge = Judge()
    assert judge.look([status("waiting", beat=9), status("running")]) is None
    assert judge.look([status("waiting", beat=10), status("done")]) is None
    assert judge.look([status("running"), status("done")]) is None
    assert judge.look([status("done"), status("done")]) == "on"


def test_an_error_after_a_rank_has_run_ahead_counts_before_the_waiting() -> None:
    judge = Judge()
    assert settle(judge, status("waiting"), status("done")) == "apart"
    assert settle(judge, status("waiting"), status("done")) is None
    error = status("error", 2, stage="forward", outcome="reduction_error", text="RuntimeError: finished reduction")
    decision = settle(judge, status("waiting"), error)
    assert isinstance(decision, Decision)
    assert (decision.outcome, decision.text) == (
        "reduction_error",
        "rank 1, iteration 2: RuntimeError: finished reduction",
    )


def test_ranks_that_ran_apart_to_their_end_hang() -> None:
    judge = Judge()
    assert settle(judge, status("waiting"), status("done")) == "apart"
    decision = settle(judge, status("ok", 4), status("ok", 4))
    assert isinstance(decision, Decision)
    assert decision.outcome == "hang"
    assert decision.text == "rank 0 waits in backward of iteration 1; rank 1 is done with iteration 1"


def test_the_first_of_several_errors_counts() -> None:
    second = status("error", 2, outcome="reduction_error", text="late")
    first = status("error", 1, outcome="ready_twice", text="early")
    other = status("error", 1, outcome="raised", text="KeyError", plan=PLAIN)
    for statuses in ([second, first, other], [other, first, second]):
        decision = Judge().look(statuses)
        assert isinstance(decision, Decision)
        assert decision.outcome == "ready_twice"
    assert Judge().look([other, status("error", 1, outcome="hang")]) == Decision(
        "raised", "rank 0, in backward of iteration 1: KeyError", plan=PLAIN
    )


def test_late_names_the_ranks_that_have_not_come_to_an_end() -> None:
    decision = late([status("running", 3, place="net.py:4"), status("done", 3)], 9.0)
    assert decision.text == "no end after 9 s: rank 0 was in backward of iteration 3 at net.py:4"
    assert late([None, None], 9.0).text == "no end after 9 s: a rank has not begun"


# ---------------------------------------------------------------------- which path when


def test_the_schedule_is_the_rehearsals_then_free() -> None:
    plans = [{**PLAIN, "inputs": number} for number in range(3)]
    made = Job(TargetSpec("net.py:build"), plans, 5, None, 60.0)
    total, at = schedule(made, 1, 4, [])
    assert total == 5 + 8
    assert [at(number)["inputs"] for number in range(5)] == [1, 2, 0, 1, 2]
    free = [at(number) for number in range(5, total)]
    assert {plan["inputs"] for plan in free} == {0, 1, 2, 3}
    assert len({plan["seed"] for plan in free}) == 8
    _, other = schedule(made, 0, 4, [])
    assert not {plan["seed"] for plan in free} & {other(number)["seed"] for number in range(5, total)}
    _, less = schedule(made, 1, 4, [plans[1]])
    assert [less(number)["inputs"] for number in range(3)] == [2, 0, 2]
    assert all(less(number)["inputs"] != 1 for number in range(5, total))
    assert schedule(made, 1, 4, plans[1:])[1](0) == plans[0]


def test_a_rank_runs_its_own_paths_if_it_has_several() -> None:
    own = [{**PLAIN, "rank": 1}, {**PLAIN, "rank": 1, "seed": 7}]
    made = Job(TargetSpec("net.py:build"), [PLAIN, *own], 4, 2, 60.0)
    assert schedule(made, 1, 1, [])[1](1) == own[0]
    assert schedule(made, 0, 1, [])[1](1) == PLAIN
    assert schedule(made, 0, 1, [])[0] == 2


def test_a_job_travels_without_loss(tmp_path: Path) -> None:
    made = job(tmp_path, model("return y"), PLAIN, {**PLAIN, "seed": 3}, iterations=4)
    assert Job.from_json(json.loads(json.dumps(made.to_json()))) == made


# ---------------------------------------------------------------------- under a launcher


def test_the_launch_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    assert verify.torchrun() is None
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "node"), ("MASTER_PORT", "29500")):
        monkeypatch.setenv(name, value)
    assert verify.torchrun() == Launch(0, 4, host="node", port=29500, hosts=True, prefix="ddplint-0")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    launch = verify.torchrun()
    assert launch is not None
    assert not launch.hosts
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(DdplintError, match="RANK, WORLD_SIZE and MASTER_PORT: are set, but not to numbers"):
        verify.torchrun()


def test_under_torchrun_its_ranks_are_used(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(model("return y"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ran = subprocess.run(
        [*torchrun, "-m", "ddplint", "verify", "--target", "net.py", "--format", "json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    (result,) = json.loads(ran.stdout)["results"]
    assert result["agree"] is True
    assert [row["real"] for row in result["settings"]] == ["reduction_error", "ok", "ok"]
    assert {row["backend"] for row in result["settings"]} == {"gloo"}


# ---------------------------------------------------------------------- against the rehearsal


SHALLOW = """
[checkpoint]
name = "shallow"
[target]
factory = "ddplint.reference.finetune:build"
kwargs = { checkpoint = "hybrid", depth = 2 }
inputs = "ddplint.reference.finetune:inputs"
variants = "ddplint.reference.finetune:variants"
loss = "ddplint.reference.finetune:loss"
"""


@pytest.mark.parametrize(
    ("ckpt", "paths", "expected"),
    [
        ("grover_base", 2, ["reduction_error", "ok", "ok"]),  # further paths of these three are all alike
        ("cmim", 2, ["reduction_error", "ok", "ok"]),
        ("hybrid", 2, ["reduction_error", "ok", "ok"]),
        ("shallow", None, ["reduction_error", "ok", "reduction_error"]),
    ],
)
def test_the_reference_model(ckpt: str, paths: int | None, expected: list[str], ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "shallow.toml").write_text(SHALLOW)
    project = find_project(ROOT, tmp_path if ckpt == "shallow" else ROOT / "rules")
    (subject,) = chosen(project, [ckpt], every=False)
    assert isinstance(subject, Subject)
    found = verify.verified(subject, dataclasses.replace(OPTIONS, paths=paths), ranks, iterations=paths and 3)
    assert found.differing == ()
    assert [real.outcome for real in found.real] == expected


def test_a_rehearsed_hang_is_a_real_one(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        model("y = self.b(y)\nif dist.get_rank() == 0:\n    dist.all_reduce(torch.zeros(1))\nreturn y")
    )
    found = verify.verified(Subject(bare_target("net.py", tmp_path)), OPTIONS, ranks)
    assert found.rehearsal.outcomes == dict.fromkeys(SETTINGS, "hang")
    assert found.differing == ()


def rehearsal(*outcomes: str) -> Rehearsal:
    details = {OFF: "rank 0 would"} if outcomes[0] != "ok" else {}
    return Rehearsal("meta", 3, 2, 0.1, dict(zip(SETTINGS, outcomes, strict=True)), details, [PLAIN])


def result(*rehearsed: str) -> Verified:
    real = (
        Real(OFF, "reduction_error", "rank 0, iteration 2: RuntimeError: so", 2, "gloo", 1.0),
        Real(ON, "ok", "", 7, "gloo", 1.0),
        Real(STATIC, "ok", "", 7, "gloo", 1.0),
    )
    return Verified("hybrid", "hybrid", "net.py:build", 2, rehearsal(*rehearsed), real)


def test_the_table() -> None:
    assert verify.render("text", [result("reduction_error", "ok", "ok")]).splitlines() == [
        "hybrid: rehearsed and real agree (2 processes over gloo)",
        "  setting                       rehearsed         real",
        "  find_unused_parameters=False  reduction_error   reduction_error",
        "      real: rank 0, iteration 2: RuntimeError: so",
        "  find_unused_parameters=True   ok                ok",
        "  static_graph=True             ok                ok",
    ]
    assert verify.render("text", [result("hang", "ok", "ok")]).splitlines()[:5] == [
        "hybrid: real processes differ under find_unused_parameters=False (2 processes over gloo)",
        "  setting                       rehearsed         real",
        "  find_unused_parameters=False  hang              reduction_error   <- differs",
        "      rehearsed: rank 0 would",
        "      real: rank 0, iteration 2: RuntimeError: so",
    ]


def test_the_json_report() -> None:
    document = json.loads(verify.render("json", [result("ok", "ok", "ok")]))
    assert document["schema_version"] == 1
    (entry,) = document["results"]
    assert (entry["ckpt"], entry["target"], entry["agree"], entry["ranks"]) == ("hybrid", "net.py:build", False, 2)
    assert entry["settings"][0] == {
        "setting": OFF,
        "rehearsed": "ok",
        "rehearsed_detail": "",
        "real": "reduction_error",
        "real_detail": "rank 0, iteration 2: RuntimeError: so",
        "iterations": 2,
        "backend": "gloo",
        "seconds": 1.0,
    }


# ---------------------------------------------------------------------- the command


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        cli.main(["verify", *arguments])
    out, err = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, out, err


def test_the_command_exits_1_if_they_differ_and_2_if_one_could_not_be_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, ranks: Ranks, tmp_path: Path
) -> None:
    monkeypatch.setattr(verify, "started", lambda *how: contextlib.nullcontext(ranks))
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "rules").mkdir()
    (tmp_path / "good.py").write_text(model("return self.b(y)"))
    (tmp_path / "bad.py").write_text(model("raise KeyError('no such atom')"))
    for name in ("good", "bad"):
        target = f'factory = "{name}.py:build"\ninputs = "{name}.py:inputs"\nloss = "{name}.py:loss"'
        (tmp_path / "rules" / f"{name}.toml").write_text(f'[checkpoint]\nname = "{name}"\n[target]\n{target}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        verify,
        "analysed",
        lambda *subject, **how: dataclasses.replace(
            analysis(used("a.weight")), rehearsal=rehearsal("ok", "ok", "reduction_error")
        ),
    )
    code, out, err = run(capsys, "--ckpt", "good")
    assert code == 1
    assert "static_graph=True             reduction_error   ok   <- differs" in out
    assert [line.rpartition(" (")[0] for line in err.splitlines()] == [f"verify good: {s} … ok" for s in SETTINGS]
    code, out, err = run(capsys, "--all", "--quiet", "--output", "report.json", "--format", "json")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: bad.py:build: {OFF}: rank 0, in forward of iteration 1: KeyError: 'no such atom'; ")
    assert err.count("\n") == 1
    (entry,) = json.loads((tmp_path / "report.json").read_text())["results"]
    assert entry["ckpt"] == "good"


def test_options_that_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--all", "--target", "net.py")
    assert (code, out) == (2, "")
    assert err == "error: --ckpt, --all and --target exclude each other; give one of them\n"


def test_the_command_does_not_import_torch_and_agrees(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(model("return self.b(y)"))
    code = (
        "import sys; from ddplint import cli\n"
        "try: cli.main(['verify', '--target', 'net.py'])\n"
        "finally: print('torch' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("net.py:build: rehearsed and real agree (2 processes over gloo)\n")
    assert ran.stdout.endswith("False\n")
    assert "verify net.py:build: static_graph=True … ok (" in ran.stderr


REHEARSED = f"""
import dataclasses
from ddplint import cli, verify
from ddplint.analysis import Rehearsal
from tests.made import analysis, used

outcomes = dict.fromkeys(verify.SETTINGS, "ok")
rehearsed = dataclasses.replace(analysis(used("a")), rehearsal=Rehearsal("meta", 3, 2, 0.1, outcomes, {{}}, [{PLAIN!r}]))
verify.analysed = lambda *subject, **how: rehearsed
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_command(number: int, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    (tmp_path / "temporary").mkdir()
    (tmp_path / "net.py").write_text(
        model(
            f"""
            with open({str(pids)!r}, "a") as file:
                file.write(f"{{os.getpid()}} {{os.getppid()}} ")
            time.sleep(1000)
            return self.b(y)
            """
        )
    )
    process = subprocess.Popen(
        [sys.executable, "-c", REHEARSED + "cli.main(['verify', '--target', 'net.py'])"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "temporary")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while len(found := pids.read_text().split() if pids.exists() else []) < 4:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in err
    deadline = time.monotonic() + 10
    folders = tmp_path / "temporary"
    while left := [pid for pid in found if Path(f"/proc/{pid}").exists()] + [*folders.iterdir()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
