"""Rule files brought to what a trace found."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddplint.analysis import Analysis, Disagreement, Parameter
from ddplint.checking import Options, Subject
from ddplint.checks.base import Case
from ddplint.config import find_project
from ddplint.errors import DdplintError
from ddplint.rules import RuleFile, load_rule_file
from ddplint.update import Update, prepared, updated, write
from tests.made import analysis, unused, used

HEAD = """\
# about this file

[checkpoint]
name = "one"  # its name

[target]
factory = "m:f"

"""

OLD = """\
# the head, of old
[[unused]]
params = [
    "head.a",  # first
    "head.b",  # second
]  # both
reason = "old heads"
action = "allow"

# stale
# for long
[[unused]]
params = ["body.w"]
reason = "was not called"
action = "freeze"

# what is left
[[unused]]
params = ["tail.**"]
reason = "not called"
action = "freeze"
# the end
"""


def rule_file(folder: Path, text: str) -> RuleFile:
    file = folder / "one.toml"
    file.write_bytes(text.encode())
    return load_rule_file(file, folder)


def update_of(folder: Path, text: str, *parameters: Parameter) -> Update:
    return updated(rule_file(folder, text), analysis(*parameters))


FOUND = (used("body.w"), unused("head.a"), used("head.b"), unused("tail.w"), unused("new.w"), unused("new.b"))


def test_what_is_right_stays_and_what_is_stale_goes(tmp_path: Path) -> None:
    found = update_of(tmp_path, HEAD + OLD, *FOUND)
    assert (found.added, found.narrowed, found.removed) == (1, 1, 1)
    kept = OLD.replace('    "head.b",  # second\n', "").replace(
        """\
[[unused]]
params = ["body.w"]
reason = "was not called"
action = "freeze"

""",
        "",
    )
    assert found.after.startswith(HEAD + kept)
    new = tomllib.loads(found.after)["unused"][-1]
    assert new == {"params": ["new.**"], "reason": "TODO", "action": "allow"}
    assert found.summary().endswith('1 entry added, 1 entry narrowed, 1 entry removed; put the reason where it says "TODO"')


def test_twice_is_once(tmp_path: Path) -> None:
    first = update_of(tmp_path, HEAD + OLD, *FOUND)
    write([first])
    second = updated(load_rule_file(tmp_path / "one.toml", tmp_path), analysis(*FOUND))
    assert not second.changes
    assert second.diff() == ""
    assert second.summary().endswith("nothing to do")


def test_nothing_to_do_leaves_every_byte(tmp_path: Path) -> None:
    text = HEAD.replace("\n", "\r\n") + '[[unused]]\r\nparams=[ "a" ]\r\nreason = "why"\r\naction = "allow"\r\n\r\n\r\n# end'
    assert update_of(tmp_path, text, unused("a.w"), used("b.w")).after == text


def test_a_glob_that_covers_too_much_is_narrowed_to_what_is_right(tmp_path: Path) -> None:
    text = f'{HEAD}[[unused]]\nparams = ["heads.**"]  # all\nreason = "why"\naction = "allow"\n'
    found = update_of(tmp_path, text, unused("heads.a.w"), unused("heads.a.b"), used("heads.b.w"), used("x"))
    assert tomllib.loads(found.after)["unused"] == [{"params": ["heads.a.**"], "reason": "why", "action": "allow"}]
    assert "# all" in found.after
    assert (found.added, found.narrowed) == (0, 1)


def test_what_is_used_sometimes_gets_an_entry_that_says_so(tmp_path: Path) -> None:
    found = update_of(tmp_path, HEAD, unused("a.w", usage="sometimes", cause="conditional"), used("b.w"))
    (entry,) = tomllib.loads(found.after)["unused"]
    assert (entry["params"], entry["when"]) == (["a.**"], "sometimes")


@pytest.mark.parametrize("more", ["optional = true\n", ""])
def test_patterns_without_a_parameter_go_unless_they_may_be_so(more: str, tmp_path: Path) -> None:
    text = f'{HEAD}[[unused]]\nparams = ["gone.**"]\nreason = "why"\naction = "allow"\n{more}'
    found = update_of(tmp_path, text, used("b.w"))
    assert found.changes == (not more)
    assert ("gone" in found.after) == bool(more)


def test_a_byte_order_mark_stays(tmp_path: Path) -> None:
    found = update_of(tmp_path, "\ufeff" + HEAD + OLD, *FOUND)
    assert found.changes
    assert (found.before[0], found.after[0]) == ("\ufeff", "\ufeff")
    write([found])
    assert not updated(load_rule_file(tmp_path / "one.toml", tmp_path), analysis(*FOUND)).changes


@pytest.mark.parametrize("sign", ["\u2028", "\u0085"])
def test_lines_are_counted_as_toml_counts_them(sign: str, tmp_path: Path) -> None:
    """Other signs that Python takes for line ends are part of a comment or a reason."""
    found = update_of(tmp_path, f"# one{sign}two\n" + HEAD + OLD.replace("old heads", f"old{sign}heads"), *FOUND)
    plain = update_of(tmp_path, "# one two\n" + HEAD + OLD.replace("old heads", "old heads"), *FOUND)
    assert found.after.replace(sign, " ") == plain.after


def test_windows_line_ends_stay(tmp_path: Path) -> None:
    found = update_of(tmp_path, (HEAD + OLD).replace("\n", "\r\n"), *FOUND)
    assert found.changes
    assert "\n" not in found.after.replace("\r\n", "")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"complete": False}, "the path budget ended"),
        ({"disagreements": (Disagreement("a.w", True, False, True),)}, "a.w differ"),
    ],
)
def test_a_trace_that_is_not_sure_changes_nothing(change: dict[str, Any], what: str, tmp_path: Path) -> None:
    rules = rule_file(tmp_path, HEAD)
    made = analysis(unused("a.w"))
    with pytest.raises(DdplintError, match=what):
        updated(rules, replace(made, trace=replace(made.trace, **change)))


def test_entries_in_an_inline_array_are_refused(tmp_path: Path) -> None:
    text = 'unused = [{ params = ["a"], reason = "why", action = "allow" }]\n' + HEAD
    with pytest.raises(DdplintError, match="inline array"):
        update_of(tmp_path, text, used("a.w"))


def test_the_rules_that_come_with_ddplint_are_not_written(tmp_path: Path) -> None:
    project = find_project(tmp_path)
    with pytest.raises(DdplintError, match="no rule files of its own"):
        prepared(project, [], Options())


def test_a_project_s_rule_file_by_a_trace(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n\n\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)\n\n"
        "    def forward(self, x):\n        return self.used(x)\n\n\n"
        "def build():\n    return Net()\n\n\n"
        "def inputs():\n    return (torch.ones(2, 4),), {}\n\n\n"
        "def loss(output):\n    return output.sum()\n"
    )
    (tmp_path / "rules").mkdir()
    text = HEAD.replace('"m:f"', '"net.py:build"\ninputs = "net.py:inputs"\nloss = "net.py:loss"')
    (tmp_path / "rules" / "one.toml").write_text(text)
    project = find_project(tmp_path)
    rules = load_rule_file(tmp_path / "rules" / "one.toml", tmp_path)
    (found,) = prepared(project, [Subject(rules.target, rules)], Options(quiet=True))
    assert "net.py:8" in found.after
    write([found])
    (entry,) = tomllib.loads((tmp_path / "rules" / "one.toml").read_text())["unused"]
    assert entry["params"] == ["spare.**"]


# ---------------------------------------------------------------------- any file, any trace

NAMES = [f"{a}.{b}.{c}" for a in "xy" for b in "01" for c in ("w", "b")]
PATTERNS = [*NAMES, "x.**", "y.**", "**.b", "x.*.w", "z.**", "*.0.**"]

entries = st.lists(
    st.tuples(
        st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3, unique=True),
        st.sampled_from(["never", "sometimes"]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=4,
)


def written(given_entries: Sequence[tuple[list[str], str, bool, bool]]) -> str:
    text = HEAD
    for number, (params, when, comment, optional) in enumerate(given_entries):
        text += f"# about {number}\n" if comment else ""
        listed = "".join(f'    "{pattern}",  # {number}: {pattern}\n' for pattern in params)
        text += f'[[unused]]\nparams = [\n{listed}]\nreason = "reason {number}"\naction = "allow"\n'
        text += 'when = "sometimes"\n' if when == "sometimes" else ""
        text += "optional = true\n\n" if optional else "\n"
    return text


def documented(case: Case) -> dict[str, str]:
    return {p.name: entry.when for p in case.trainable if (entry := case.documented_by(p)) is not None}


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(entries, st.lists(st.sampled_from(["always", "never", "sometimes"]), min_size=len(NAMES), max_size=len(NAMES)))
def test_afterwards_the_rules_say_what_was_found(
    tmp_path_factory: pytest.TempPathFactory, given_entries: list[Any], usages: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("rules")
    parameters = [
        used(name) if usage == "always" else unused(name, usage=usage) for name, usage in zip(NAMES, usages, strict=True)
    ]
    made: Analysis = analysis(*parameters)
    rules = rule_file(folder, written(given_entries))
    found = updated(rules, made)
    write([found])
    after = load_rule_file(folder / "one.toml", folder)
    case = Case(made, after)
    assert documented(case) == {p.name: p.usage for p in made.unused()}
    assert all(case.agrees(entry, p) for entry in after.unused for p in case.covered(entry))
    reasons = [entry.reason for entry in after.unused if entry.reason != "TODO"]
    assert reasons == [r for r in (entry.reason for entry in rules.unused) if r in reasons]  # in their order
    for number, (_, _, comment, _) in enumerate(given_entries):
        if comment:
            assert f"# about {number}\n" in found.after
    for entry in rules.unused:  # what stays keeps the comment beside it
        which = entry.reason.split()[-1]
        kept = next((e for e in after.unused if e.reason == entry.reason), None)
        for pattern in entry.params:
            if kept is not None and pattern in kept.params:
                assert f"# {which}: {pattern}\n" in found.after
    assert not updated(after, made).changes
