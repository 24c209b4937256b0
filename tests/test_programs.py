"""Random programs: ddplint's answer against real backward runs, and against a real two-process DDP.

Hundreds here, derandomized; thousands by ``python tests/programs_nightly.py``. Each mismatch that either of them
ever found is below in FOUND, as the smallest source that showed it, with the truth.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings

from ddplint.analysis import Analysis, Disagreement, Usage
from ddplint.errors import DdplintError
from tests import programs_oracle
from tests.programs import Apply, Branch, Condition, Layer, Limits, Program, Within, programs, smaller, source
from tests.programs_nightly import drawn, smallest
from tests.programs_oracle import Oracle, ask, compare, compare_texts, rehearsed_and_real

FIXED = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False)
HEAD = """\
import random
import numpy as np
import torch
import torch.utils.checkpoint
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.two = nn.Linear(4, 4)

    def forward(self, x):
"""
TAIL = """

def build():
    return Model()


def inputs():
    return (torch.randn(3, 4),), {}


def loss(output):
    return output.sum()
"""
ONE, TWO = frozenset({"one.weight", "one.bias"}), frozenset({"two.weight", "two.bias"})
NONE: frozenset[str] = frozenset()

# name -> (the body of Model.forward, the parameters never used, those used sometimes)
FOUND = {
    # Unused only where forks are answered differently: forcing one of them, or all alike, does not show it.
    "forks_that_must_meet": (
        """\
        a = self.two(x)
        if random.random() < 0.5:
            a = a + self.one(x)
        if random.random() >= 0.5:
            a = a + self.one(x)
        if torch.rand(1) < 0.5:
            a = a + self.one(x)
        if torch.rand(1) >= 0.5:
            a = a + self.one(x)
        return a
""",
        NONE,
        ONE,
    ),
    # The same of a choice and a loop: the one is used only where the loop does not turn.
    "a_choice_that_a_loop_overwrites": (
        """\
        a = [self.one, self.two][x.sum(0)[:2].argmax().item()](x)
        for _ in range(torch.randint(0, 3, (1,)).item()):
            a = self.two(x)
        return a
""",
        NONE,
        ONE | TWO,
    ),
    # autograd.grad hands a parameter's gradient to the parameter's own hooks, and nothing is accumulated.
    "a_parameter_that_autograd_grad_names": (
        """\
        a, w = self.two(x), self.one.weight
        return a + torch.autograd.grad((a * w[0]).sum(), w, create_graph=True)[0][0]
""",
        ONE,
        NONE,
    ),
    # numpy's draw among few is a choice among few: its two ends are not all of it.
    "the_middle_of_a_choice": (
        """\
        a = self.two(x)
        return self.one(a) if np.random.randint(7) == 3 else a
""",
        NONE,
        ONE,
    ),
    # A mask that is used twice is one value: forced apart, its two uses contradict each other.
    "a_mask_that_is_used_twice": (
        """\
        a = self.two(x)
        if len(x[x > 0]) > 5:
            a = torch.tanh(x)
        if len(x[x > 0]) > 5:
            a = self.one(a)
        return a
""",
        NONE,
        ONE | TWO,
    ),
    # A read that the first step has too, and what it decides only in the second.
    "a_read_and_a_counter": (
        """\
        self.count = getattr(self, "count", 0) + 1
        a = self.two(x)
        if sum(a.sum(1).tolist()) > 0:
            return a
        return a if self.count % 2 == 1 else a + self.one(x)
""",
        NONE,
        ONE,
    ),
    # Where one answer leaves the loss without a gradient, it may leave it one on another path.
    "an_answer_that_ends_without_a_gradient": (
        """\
        if torch.randint(0, 2, (1,)).item():
            if torch.rand(()).item() < 0.5:
                return x
            return self.one(x)
        return self.two(x)
""",
        NONE,
        ONE | TWO,
    ),
    # A Function that gets no gradient makes zeros of it, and these are a gradient to what is behind it.
    "zeros_behind_a_none": (
        """\
        class Second(torch.autograd.Function):
            @staticmethod
            def forward(ctx, a, b):
                return a + b

            @staticmethod
            def backward(ctx, gradient):
                return None, gradient

        return Second.apply(Second.apply(x, self.one(x)), self.two(x))
""",
        NONE,
        NONE,
    ),
    # Two reads on one line are two forks: one answer for both takes the branch on neither.
    "two_reads_on_a_line": (
        """\
        a = self.two(x)
        if x[0, 0].item() > 0.8 and x[0, 1].item() < -0.8:
            a = a + self.one(x)
        return a
""",
        NONE,
        ONE,
    ),
    # And a function that reads is as many forks as there are calls of it.
    "a_helper_that_reads_twice": (
        """\
        def high(value):
            return value.item() > 0.8

        a = self.two(x)
        if high(x[0, 0]) and not high(x[0, 1] + 1.6):
            a = a + self.one(x)
        return a
""",
        NONE,
        ONE,
    ),
    # Three answers must meet, and two of the forks show only under the third.
    "forks_that_must_meet_under_a_draw": (
        """\
        a = self.two(x)
        if torch.randint(0, 2, (1,)).item():
            a = [self.one, self.two][np.random.randint(2)](a)
            for _ in range(int(a.sum().abs().clamp(max=3))):
                a = self.two(x)
        return a
""",
        NONE,
        ONE,
    ),
    # The first answer at the inner fork makes a path that raises: the other one is still to be tried.
    "a_fork_on_a_path_that_raises": (
        """\
        if torch.isinf(x * 1e38).any():
            taken = torch.randint(0, 7, (1,)).item()
            return self.one(x) if taken == 6 else x
        return self.two(x)
""",
        NONE,
        ONE | TWO,
    ),
    # What non-reentrant checkpoints and saved-tensor hooks pass on untouched.
    "an_identity_under_saved_tensor_hooks": (
        """\
        with torch.autograd.graph.save_on_cpu():
            return torch.utils.checkpoint.checkpoint(lambda v: v, self.one(x), use_reentrant=False)
""",
        TWO,
        NONE,
    ),
    # A fork that only a later step comes to: forcing it from the first step's state never reaches it.
    "a_fork_of_the_second_step": (
        """\
        self.count = getattr(self, "count", 0) + 1
        a = self.two(x)
        if self.count % 2 == 0 and random.random() < 0.1:
            a = self.one(a)
        return a
""",
        NONE,
        ONE,
    ),
    # Autograd refuses to tell what a view made under no_grad is made of, once its base is written to. Nobody asks it here.
    "a_view_that_is_left_behind": (
        """\
        a = self.two(x)
        with torch.no_grad():
            a[:, 0] = a[:, 1]
        return a
""",
        ONE,
        NONE,
    ),
    # Not all can be false, and no one of them: what is unused where the first is false each time shows by answers in turn.
    "one_of_three_each_time": (
        """\
        a = 0.0
        for number in (0, 1, 2, 0, 1, 2):
            route = (x * (number + 1.5)).sum(1).sin().abs()
            if (route > 0.7).nonzero().numel() > 0:
                a = a + [self.one, self.two, self.two][number](x)
        return a
""",
        NONE,
        ONE | TWO,
    ),
    # An answer can be at odds with what is computed after it. That such a path raises says nothing about the answer.
    "an_answer_before_a_test_that_raises": (
        """\
        sums = x.sum(0)
        best = int(sums.argmax())
        a = [self.two, self.two, self.one, self.two][best](x)
        if sums[best] < sums.mean():
            raise ValueError(best)
        return a
""",
        NONE,
        ONE | TWO,
    ),
    # What `.data =` makes of an inference tensor keeps no version, and does not say that it is one.
    "an_inference_tensor_that_got_other_data": (
        """\
        with torch.inference_mode():
            a = x.clone()
            a.data = x.data
        return self.one(torch.nn.functional.linear(x, torch.eye(4)) * 2) + a.sum()
""",
        TWO,
        NONE,
    ),
    # What raises in backward raises on meta as well, and the error names the type of the tensors, not what is wrong there.
    "a_backward_that_raises_on_one_path": (
        """\
        a = self.two(x)
        if random.random() < 0.4:
            a = self.one(x).clone()
            view = a[:, 1:]
            view.mul_(a[:, 1:])
        return a
""",
        ONE,
        NONE,
    ),
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@settings(FIXED, max_examples=200, phases=[Phase.explicit, Phase.generate])
@given(programs())
def test_ddplint_and_real_backward_agree(tmp_path_factory: pytest.TempPathFactory, program: Program) -> None:
    folder = tmp_path_factory.getbasetemp()
    found = compare(program, folder).mismatches
    if found:  # hypothesis would shrink its choices, which takes minutes; the tree itself shrinks in seconds
        program = smallest(program, found[0].kind, folder)
        pytest.fail(f"{compare(program, folder).mismatches}\n{source(program)}")


@pytest.mark.parametrize("name", FOUND)
def test_found_mismatches_stay_mended(name: str, tmp_path: Path) -> None:
    body, never, sometimes = FOUND[name]
    analysis = ask(HEAD + body + TAIL, tmp_path)
    usage = {p.name: p.usage for p in analysis.parameters}
    assert {n for n, u in usage.items() if u == "never"} == never
    assert {n for n, u in usage.items() if u == "sometimes"} == sometimes
    assert analysis.trace.disagreements == ()


@pytest.mark.parametrize("name", FOUND)
def test_their_truth_is_what_backward_says(name: str) -> None:
    body, never, sometimes = FOUND[name]
    runs, _ = Oracle(HEAD + body + TAIL).natural(range(40))
    assert {n for n in ONE | TWO if not runs.used_in_some(n)} == never
    assert {n for n in ONE | TWO if runs.varies(n)} == sometimes


def test_a_real_ddp_of_two_processes_does_what_was_rehearsed(tmp_path: Path) -> None:
    compared = rehearsed_and_real(drawn(24, 7, Limits(forks=False)), tmp_path)
    assert {f.name: real for f, (_, real) in compared.items()} == {
        f.name: rehearsed for f, (rehearsed, _) in compared.items()
    }
    assert len(compared) >= 12


# ---------------------------------------------------------------------- the oracle and the strategy themselves

BRANCHING = Program(
    (
        Branch(Condition("random", "a"), (Layer("a", "a", "linear"),)),
        Layer("b", "b", "bare", call="unused"),
        Within("no_grad", (Layer("c", "c", "norm"),)),
    ),
    in_loss=("a", "c"),
)


def test_the_oracle_sees_never_and_sometimes() -> None:
    runs, base = Oracle(source(BRANCHING, watched=True)).natural(range(8))
    assert base.count == 8
    assert [n for n in ("m0.weight", "m0.bias") if runs.varies(n)] == ["m0.weight", "m0.bias"]
    assert [n for n in ("m1.weight", "m2.weight", "m2.bias") if runs.used_in_some(n)] == []
    assert not runs.unused_in_some("stem.weight")


def test_forced_runs_take_branches_that_data_does_not() -> None:
    program = Program((Branch(Condition("nan", "a"), (Layer("a", "a", "linear"),)),))
    oracle = Oracle(source(program, watched=True))
    assert not oracle.natural(range(4))[0].used_in_some("m0.weight")
    assert oracle.forced(8).varies("m0.weight")


@pytest.mark.parametrize(
    ("name", "usage", "kind"),
    [
        ("m0.weight", "always", "false-all-clear"),
        ("m0.weight", "never", "false-alarm"),
        ("m1.weight", "sometimes", "unseen"),
        ("stem.bias", "sometimes", "unseen"),
        ("stem.bias", "never", "false-alarm"),
        ("m2.bias", "always", "false-all-clear"),
    ],
)
def test_a_wrong_answer_is_a_mismatch(
    name: str, usage: Usage, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(text: str, folder: Path) -> Analysis:
        right = ask(text, folder)
        changed = [replace(p, usage=usage, evidence="observed") if p.name == name else p for p in right.parameters]
        return replace(right, parameters=tuple(changed))

    monkeypatch.setattr(programs_oracle, "ask", wrong)
    assert [(m.kind, m.what) for m in compare(BRANCHING, tmp_path).mismatches] == [(kind, name)]


def test_a_disagreement_an_error_and_a_crash_are_mismatches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def differs(text: str, folder: Path) -> Analysis:
        right = ask(text, folder)
        record = replace(right.trace, disagreements=(Disagreement("stem.bias", True, True, False),))
        return replace(right, trace=record)

    def refuses(text: str, folder: Path) -> Analysis:
        raise DdplintError("no", where="here")

    def crashes(text: str, folder: Path) -> Analysis:
        raise KeyError("stem")

    for instead, kind in ((differs, "disagreement"), (refuses, "wrong-error"), (crashes, "crash")):
        monkeypatch.setattr(programs_oracle, "ask", instead)
        assert [m.kind for m in compare(BRANCHING, tmp_path).mismatches] == [kind]


def test_a_program_without_a_gradient_has_to_be_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = Program((Apply("a", "a", "a", "detach"),))
    answered = ask(source(BRANCHING), tmp_path)
    assert compare(dead, tmp_path).outcome == "refused"
    monkeypatch.setattr(programs_oracle, "ask", lambda text, folder: answered)
    assert [m.kind for m in compare(dead, tmp_path).mismatches] == ["no-error"]


@settings(FIXED, max_examples=100)
@example(BRANCHING)
@given(programs())
def test_a_program_is_python_and_its_watched_form_differs_in_choose_alone(program: Program) -> None:
    plain, watched = source(program), source(program, watched=True)
    compile(plain, "program.py", "exec")
    pairs = list(zip(plain.splitlines(), watched.splitlines(), strict=True))
    assert [p for p, w in pairs if "choose(" not in w] == [w for _, w in pairs if "choose(" not in w]
    for line, forked in pairs:
        start = forked.split("choose(")[0]
        assert line.startswith(start)


@settings(FIXED, max_examples=30)
@given(programs())
def test_smaller_programs_come_to_an_end(program: Program) -> None:
    steps = 0
    while (candidate := next(smaller(program), None)) is not None:
        assert candidate != program
        program = candidate
        steps += 1
        assert steps < 1000
    assert program.body == ()


def test_the_same_seed_draws_the_same_programs() -> None:
    assert drawn(20, 3, Limits()) == drawn(20, 3, Limits())
    assert drawn(20, 3, Limits()) != drawn(20, 4, Limits())


def test_texts_can_be_compared_without_a_tree(tmp_path: Path) -> None:
    text = HEAD + "        return self.one(x) + self.two(x).detach()\n" + TAIL
    verdict = compare_texts(text, text, tmp_path)
    assert verdict.mismatches == ()
    assert verdict.analysis is not None
    assert {p.name for p in verdict.analysis.unused()} == TWO
