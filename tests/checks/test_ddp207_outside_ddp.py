"""DDP207 on analyses made by hand, and what a real DDP does with a parameter that it does not know."""

from __future__ import annotations

from pathlib import Path

from ddplint.analysis import Location, Outside
from ddplint.checks.base import Case
from ddplint.checks.ddp207_outside_ddp import BAD, check
from tests import real_ddp
from tests.made import FILE, analysis, used


def at(line: int, function: str = "loss") -> Location:
    return Location(FILE, line, function, "return x * scale")


def test_one_finding_for_each_function() -> None:
    made = analysis(
        used("a.w"),
        outside=(Outside((2, 3), 6, at(5)), Outside((4,), 4, at(9, "Margin.forward")), Outside((3,), 3, at(6))),
    )
    first, second = check(Case(made))
    assert first.message == (
        "model.py:5 `return x * scale`: 2 parameters (9 weights, shape (2, 3), (3,)) that the loss trains are not in the "
        "model: DDP does not average their gradients, and the ranks drift apart without an error"
    )
    assert (first.location, first.parameters, first.severity) == (at(5), (), "error")
    assert "1 parameter (4 weights, shape (4,)) that the loss trains is not in the model" in second.message
    assert second.fix.endswith("call requires_grad_(False) if it is not meant to train")


def test_many_shapes_are_cut_short_and_a_place_need_not_be_known() -> None:
    (finding,) = check(Case(analysis(outside=tuple(Outside((n,), n, None) for n in range(1, 6)))))
    assert finding.message.startswith("5 parameters (15 weights, shape (1,), (2,), (3,), …) that")
    assert finding.location is None


def test_none_outside_is_no_finding() -> None:
    assert list(check(Case(analysis(used("a.w"))))) == []


GATHERED = """
def inputs():
    return (torch.randn(2, 4),), {}


def loss(output):
    if dist.is_initialized() and scale.grad is not None:
        both = [torch.zeros(2), torch.zeros(2)]
        dist.all_gather(both, scale.grad)
        raise RuntimeError(f"the ranks' gradients are {'equal' if torch.equal(*both) else 'different'}")
    return (output * scale).sum()
"""


def test_a_real_ddp_does_not_average_it(tmp_path: Path) -> None:
    source = (
        BAD[0]
        .source.partition("\ndef inputs")[0]
        .replace("import torch\n", "import torch\nimport torch.distributed as dist\n")
    )
    (tmp_path / "case.py").write_text(source + GATHERED)
    setting = "find_unused_parameters=False"
    (seen,) = real_ddp.run([tmp_path / "case.py"], settings=[setting], iterations=2).values()
    assert seen.details[setting] == ("forward 2: RuntimeError: the ranks' gradients are different",) * 2
