"""Every check's examples, put to ddplint and to a real DistributedDataParallel of two processes."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddplint.analyse import analyse
from ddplint.analysis import Analysis
from ddplint.baseline import difference
from ddplint.checkpoint.model import Checkpoint, Tensor
from ddplint.checkpoint.table import Stored, stored
from ddplint.checks.base import Case, Example, Finding
from ddplint.checks.registry import all_checks, run
from ddplint.request import Request
from ddplint.rules import RuleFile, TargetSpec, load_rule_file
from tests import real_ddp

HEAD = """
[checkpoint]
name = "example"

[target]
factory = "case.py:build"
inputs = "case.py:inputs"
loss = "case.py:loss"
"""

OFF, ON, STATIC = "find_unused_parameters=False", "find_unused_parameters=True", "static_graph=True"

# What a real DDP has to do with a check's BAD examples, where what is reported is about DDP.
UNUSED = {OFF: "reduction_error", ON: "ok"}
UNSEEN = {OFF: "ok", ON: "ready_twice"}
MEANING = {
    **dict.fromkeys(("DDP101", "DDP201", "DDP202", "DDP203", "DDP204"), UNUSED),
    **dict.fromkeys(("DDP205", "DDP206"), UNSEEN),
    **dict.fromkeys(("DDP207", "DDP208"), dict.fromkeys((OFF, ON, STATIC), "ok")),
    "DDP301": {OFF: "ok"},
    "DDP302": UNUSED,
    "DDP303": {STATIC: "ok"},
}
# A fault that DDP does not notice, an answer that is not sure, or one that only the rule file makes a fault.
FAULTS_WITHOUT_A_FAILURE = ("DDP102", "DDP103", "DDP105", "DDP207", "DDP301", "DDP402", "DDP901", "DDP902")


@dataclass(frozen=True)
class Kept:
    """One example of one check."""

    code: str
    bad: bool
    number: int
    example: Example

    @property
    def name(self) -> str:
        return f"{self.code}-{'bad' if self.bad else 'good'}-{self.number}"


EXAMPLES = [
    Kept(check.CODE, bad, number, example)
    for check in all_checks()
    for bad, examples in ((True, check.BAD), (False, check.GOOD))
    for number, example in enumerate(examples)
]


def write(example: Example, folder: Path) -> Path:
    """The example as files in ``folder``: ``case.py`` and, if it has rules, ``rules/example.toml``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "case.py").write_text(example.source)
    if example.rules is not None:
        (folder / "rules").mkdir()
        variants = 'variants = "case.py:variants"\n' if "def variants" in example.source else ""
        (folder / "rules" / "example.toml").write_text(f"{HEAD}{variants}{example.rules}")
    return folder / "case.py"


def findings(example: Example, folder: Path) -> tuple[tuple[Finding, ...], Case]:
    """What ddplint finds in the example, in this process, and the case that the checks were given."""
    write(example, folder)
    rules = None if example.rules is None else load_rule_file(folder / "rules" / "example.toml", folder)
    spec = rules.target if rules else TargetSpec(factory="case.py:build", base=str(folder), from_module=True)
    documented = tuple(pattern for entry in rules.unused for pattern in entry.params) if rules else ()
    analysis = analyse(Request(target=spec, documented=documented, paths=example.paths))
    base = None
    if example.before is not None:
        _, was = findings(Example(example.before, example.rules), folder / "at_base")
        base = difference(analysis, was.analysis, rules, was.rules, "main", "0" * 40)
    case = Case(analysis, rules, base=base, stored=held(example, analysis, rules))
    return run(case), case


def held(example: Example, analysis: Analysis, rules: RuleFile | None) -> Stored | None:
    """The checkpoint file with the example's keys, if it has any."""
    if example.keys is None:
        return None
    tensors = [
        Tensor(key, shape, "float32", 4 * math.prod(shape), str(number))
        for number, (key, shape) in enumerate(example.keys.items())
    ]
    path = Path("model.pt")
    return stored(Checkpoint(path, "zip", tuple(tensors), (), (), (path,)), analysis, rules.rename if rules else {})


@pytest.mark.parametrize("kept", EXAMPLES, ids=lambda kept: kept.name)
def test_example(kept: Kept, tmp_path: Path) -> None:
    found, _ = findings(kept.example, tmp_path)
    if kept.bad:
        assert kept.code in [finding.code for finding in found]
    else:
        assert found == ()


@pytest.mark.parametrize("kept", [kept for kept in EXAMPLES if kept.code == "DDP101" and kept.bad])
def test_documenting_with_the_entry_that_the_finding_prints_settles_it(kept: Kept, tmp_path: Path) -> None:
    found, _ = findings(kept.example, tmp_path / "before")
    entries = [finding.fix.partition("\n")[2] for finding in found if finding.code == "DDP101"]
    assert entries
    assert all(tomllib.loads(entry)["unused"][0]["action"] == "allow" for entry in entries)
    kept_rules = "" if kept.example.rules and "sometimes" in kept.example.rules else kept.example.rules or ""
    after, _ = findings(Example(kept.example.source, "\n".join([kept_rules, *entries])), tmp_path / "after")
    assert after == ()


def test_freezing_as_the_finding_says_settles_it(tmp_path: Path) -> None:
    (kept, *_) = [kept for kept in EXAMPLES if kept.code == "DDP101" and kept.bad]
    (finding,) = findings(kept.example, tmp_path / "before")[0]
    line = finding.fix.split("`")[1]
    frozen = kept.example.source.replace("return Net()", f"model = Net()\n    {line}\n    return model")
    assert frozen != kept.example.source
    assert findings(Example(frozen), tmp_path / "after")[0] == ()


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, real_ddp.Observed]:
    """What real DDP does with every example, by the example's name."""
    folder = tmp_path_factory.mktemp("examples")
    files = {kept.name: write(kept.example, folder / kept.name) for kept in EXAMPLES}
    seen = real_ddp.run(list(files.values()), iterations=3)
    return {name: seen[file] for name, file in files.items()}


@pytest.mark.parametrize(
    "kept",
    [kept for kept in EXAMPLES if kept.bad and kept.code in MEANING],
    ids=lambda kept: kept.name,
)
def test_real_ddp_does_what_is_reported(kept: Kept, observed: dict[str, real_ddp.Observed]) -> None:
    seen, wanted = observed[kept.name], MEANING[kept.code]
    assert {setting: seen.outcomes[setting] for setting in wanted} == wanted, seen.details
    if wanted is UNUSED and kept.code != "DDP204":  # there it depends on the rank, and a plain run has none
        assert seen.never or seen.sometimes


@pytest.mark.parametrize("kept", EXAMPLES, ids=lambda kept: kept.name)
def test_the_rehearsal_says_what_real_ddp_does(kept: Kept, observed: dict[str, real_ddp.Observed], tmp_path: Path) -> None:
    _, case = findings(kept.example, tmp_path)
    assert case.analysis.rehearsal is not None
    assert case.analysis.rehearsal.outcomes == observed[kept.name].outcomes


@pytest.mark.parametrize("kept", EXAMPLES, ids=lambda kept: kept.name)
def test_what_uses_all_and_runs_either_way_has_no_fault(kept: Kept, tmp_path: Path) -> None:
    found, case = findings(kept.example, tmp_path)
    rehearsal = case.analysis.rehearsal
    assert rehearsal is not None
    if not case.analysis.unused() and rehearsal.outcomes[OFF] == rehearsal.outcomes[ON] == "ok":
        faults = {finding.code for finding in found if finding.severity != "info"}
        assert faults <= set(FAULTS_WITHOUT_A_FAILURE)


@pytest.mark.parametrize("kept", [kept for kept in EXAMPLES if not kept.bad], ids=lambda kept: kept.name)
def test_real_ddp_runs_what_is_good(kept: Kept, observed: dict[str, real_ddp.Observed]) -> None:
    seen = observed[kept.name]
    if seen.never or seen.sometimes:
        assert kept.example.rules is not None, "an example with unused parameters is good only if they are documented"
        assert seen.outcomes[OFF] == "reduction_error"
    else:
        assert set(seen.outcomes.values()) == {"ok"}, seen.details


@pytest.mark.parametrize("kept", [k for k in EXAMPLES if (k.code, k.bad) != ("DDP204", True)], ids=lambda kept: kept.name)
def test_real_backward_says_the_same(kept: Kept, observed: dict[str, real_ddp.Observed], tmp_path: Path) -> None:
    _, case = findings(kept.example, tmp_path)
    seen = observed[kept.name]
    unused = {p.name: p.usage for p in case.analysis.unused()}
    assert unused == {**dict.fromkeys(seen.never, "never"), **dict.fromkeys(seen.sometimes, "sometimes")}
