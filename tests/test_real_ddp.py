"""The second oracle itself: real DDP on models of known outcome (``truth.json``), and on broken targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import real_ddp

CASES = Path(__file__).parent / "cases"
TRUTH = json.loads((CASES / "truth.json").read_text())

KNOWN = [
    "reentrant_checkpoint",
    "second_output_unused",
    "dataclass_output",
    "tied_lm_head_clean",
    "argmax_policy",
]
OFF, ON = "find_unused_parameters=False", "find_unused_parameters=True"

STUCK = """
import torch
from torch import nn

def build():
    return nn.Linear(2, 2)

def inputs():
    return (torch.ones(1, 2),), {}

def loss(output):
    if torch.distributed.is_initialized():
        while True:
            pass
    return output.sum()
"""

DIES = STUCK.replace("        while True:\n            pass\n", "        import os; os._exit(3)\n")
RAISES = STUCK.replace("        while True:\n            pass\n", "        raise KeyError('no such key')\n")
PRINTS = STUCK.replace("        while True:\n            pass\n", "        print('{}', flush=True)\n")


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (("ok", "ok"), "ok"),
        (
            ("forward 2: RuntimeError: Expected to have finished reduction in the prior", "ok"),
            "reduction_error",
        ),
        (("backward 1: RuntimeError: Expected to mark a variable ready only once.", "silent"), "ready_twice"),
        (
            ("forward 3: RuntimeError: Your training graph has changed in this iteration", "ok"),
            "reduction_error",
        ),
        (("backward 2: RuntimeError: Timed out waiting 5000ms for recv operation", "ok"), "hang"),
        (("silent", "ok"), "hang"),
        (("forward 1: KeyError: 'x'", "backward 1: RuntimeError: Connection closed by peer"), "other"),
    ],
)
def test_classify(said: tuple[str, ...], outcome: str) -> None:
    assert real_ddp.classify(said) == outcome


def test_known_outcomes() -> None:
    seen = real_ddp.run([CASES / f"{name}.py" for name in KNOWN], iterations=3)
    for name in KNOWN:
        observed, truth = seen[CASES / f"{name}.py"], TRUTH[name]
        assert observed.outcomes[OFF] == truth["ddp_false_outcome"], observed.details
        assert observed.outcomes[ON] == truth["ddp_true_outcome"], observed.details
        assert list(observed.never) == truth["never"]
        assert observed.sometimes == ()


def test_targets_that_hang_die_raise_or_print_are_told_apart(tmp_path: Path) -> None:
    files = [CASES / "everything_unused_batch.py"]
    for name, text in (("prints", PRINTS), ("raises", RAISES), ("dies", DIES), ("stuck", STUCK)):
        files.append(tmp_path / f"{name}.py")
        files[-1].write_text(text)
    seen = real_ddp.run(files, settings=[OFF], iterations=8, limit=10)
    outcomes = {file.stem: seen[file].outcomes[OFF] for file in files}
    assert outcomes == {
        "everything_unused_batch": "hang",
        "prints": "ok",
        "raises": "other",
        "dies": "hang",
        "stuck": "hang",
    }, {file.stem: seen[file].details for file in files}
    assert len(seen[files[0]].sometimes) == 5


class Failing:
    """A pair whose model does not even run by itself."""

    def ask(self, job: dict[str, Any], limit: float) -> list[dict[str, Any] | None]:
        return [{"said": "TypeError: no such argument"}, {"said": "TypeError: no such argument"}]

    def close(self) -> None:
        pass


def test_a_target_that_does_not_run_by_itself_is_an_error_of_the_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(real_ddp, "Pair", Failing)
    with pytest.raises(RuntimeError, match=r"broken\.py: the model does not run without DDP: TypeError"):
        real_ddp.run([Path("broken.py")])
