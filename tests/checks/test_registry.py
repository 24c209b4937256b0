"""Finding checks by looking into a folder, and running them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddplint.checks import registry
from ddplint.checks.base import Case, Check
from ddplint.errors import DdplintError
from tests.made import analysis, entry, rules, unused, used

FOLDER = Path(registry.__file__).parent

WHOLE = '''"""A parameter has a name.

## What it does
Reports it.
## Why it matters
It does not.
## Example
None.
## What to do
Nothing.
## Notes
None.
"""
from ddplint.checks.base import Example, Finding

CODE, NAME, SEVERITY = "DDP999", "has-a-name", "info"
GOOD = BAD = (Example("source"),)


def check(case):
    for parameter in case.analysis.parameters:
        yield Finding(CODE, NAME, SEVERITY, "it has a name", (parameter.name,), None, "none")
'''


def put(folder: Path, text: str = WHOLE, name: str = "ddp999_has_a_name.py") -> Path:
    (folder / name).write_text(text)
    return folder


def test_every_file_of_a_rule_is_found_and_nothing_else() -> None:
    files = {path.stem for path in FOLDER.glob("ddp*.py")}
    assert {check.__name__.rpartition(".")[2] for check in registry.all_checks()} == files  # type: ignore[attr-defined]
    codes = [check.CODE for check in registry.all_checks()]
    assert codes == sorted(set(codes))
    wanted = [*range(101, 106), *range(201, 209), 303, 901, 902]
    assert {f"DDP{number}" for number in wanted} <= set(codes)


def test_a_rule_is_one_file_more(tmp_path: Path) -> None:
    (check,) = registry.load(put(tmp_path), package="one")
    (finding,) = check.check(Case(analysis(used("a.w"))))
    assert (check.CODE, finding.parameters) == ("DDP999", ("a.w",))


def test_support_modules_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "WORDS = ()\n", "words.py")
    put(tmp_path, "raise RuntimeError\n", "__init__.py")
    assert registry.load(tmp_path, package="support") == ()


@pytest.mark.parametrize(
    ("old", "new", "lacks"),
    [
        ('"DDP999"', '"999"', "CODE"),
        ('"has-a-name"', '"Has a name"', "NAME"),
        ('"has-a-name"', '"has-no-name"', "ddp999_has_no_name.py"),
        ('"info"', '"fatal"', "SEVERITY"),
        ("GOOD = BAD =", "BAD =", "GOOD"),
        ('(Example("source"),)', '["source"]', "BAD"),
        ('(Example("source"),)', "()", "GOOD"),
        ("def check(case)", "def check(case, graph)", "line 20: check"),
        ("def check(case)", "def check_it(case)", "check(case)"),
        ("## Notes", "## Note", "headings"),
        ('"""A parameter', 'TEXT = """A parameter', "docstring"),
    ],
)
def test_a_wrong_shape_is_refused_with_its_file(tmp_path: Path, old: str, new: str, lacks: str) -> None:
    assert WHOLE.count(old) == 1
    with pytest.raises(DdplintError) as caught:
        registry.load(put(tmp_path, WHOLE.replace(old, new)), package=f"wrong.{tmp_path.name}")
    assert str(tmp_path / "ddp999_has_a_name.py") in str(caught.value)
    assert lacks in str(caught.value)
    assert "\n" not in str(caught.value)


def test_everything_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(DdplintError) as caught:
        registry.load(put(tmp_path, "CODE = 'DDP998'\n", "extra.py"), package="bare")
    for word in ("NAME", "SEVERITY", "GOOD", "BAD", "check(case)", "docstring"):
        assert word in str(caught.value)


def test_a_check_that_cannot_be_imported_is_refused_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(DdplintError, match=r"ddp999_has_a_name\.py: cannot be imported: ModuleNotFoundError"):
        registry.load(put(tmp_path, "import no_such_module\n"), package="unimportable")


def test_one_code_cannot_be_in_two_files(tmp_path: Path) -> None:
    put(put(tmp_path), WHOLE.replace("has-a-name", "second"), "ddp999_second.py")
    with pytest.raises(DdplintError, match=r"DDP999 is also the code of ddp999_has_a_name\.py"):
        registry.load(tmp_path, package="twice")


def case() -> Case:
    return Case(analysis(unused("a.w"), unused("b.w", 9, cause="severed")), rules(entry("gone")))


@pytest.mark.parametrize(
    ("select", "ignore", "codes"),
    [
        ((), (), ["DDP101", "DDP101", "DDP103", "DDP201"]),
        (("DDP101",), (), ["DDP101", "DDP101"]),
        (("DDP1",), ("DDP101",), ["DDP103"]),
        (("ddp201", "unmatched-pattern"), (), ["DDP103", "DDP201"]),
        ((), ("DDP1",), ["DDP201"]),
        (("DDP101",), ("DDP",), []),
    ],
)
def test_select_and_ignore(select: tuple[str, ...], ignore: tuple[str, ...], codes: list[str]) -> None:
    assert [finding.code for finding in registry.run(case(), select, ignore)] == codes


@pytest.mark.parametrize(
    ("word", "near"),
    [("DDP110", "DDP101"), ("stale-rules", "stale-rule"), ("xyz", "the rules are"), ("", "rules")],
)
def test_an_unknown_code_is_refused_with_a_near_miss(word: str, near: str) -> None:
    for option, ask in (("--select", (word,)), ("--ignore", (word,))):
        with pytest.raises(DdplintError, match=near) as caught:
            registry.run(case(), **{option.removeprefix("--"): ask})
        assert str(caught.value).startswith(option)
    with pytest.raises(DdplintError, match=near):
        registry.get(word)


@pytest.mark.parametrize("word", ["DDP102", "ddp102", "stale-rule"])
def test_a_rule_is_got_by_code_or_name(word: str) -> None:
    assert registry.get(word).CODE == "DDP102"


@pytest.mark.parametrize("check", registry.all_checks(), ids=lambda check: check.CODE)
def test_pages(check: Check) -> None:
    page = registry.page(check)
    assert page.startswith(f"# {check.CODE} {check.NAME} ({check.SEVERITY})\n\n")
    sections = re.split(r"(?m)^## .+\n", page)[1:]
    assert all(len(section.split()) > 15 for section in sections)


@pytest.mark.parametrize("check", registry.all_checks(), ids=lambda check: check.CODE)
def test_what_a_page_shows_is_in_an_example_that_is_run(check: Check) -> None:
    shown = re.findall(r"(?s)```(python|toml)\n(.+?)```", registry.page(check))
    for language, block in shown:
        examples = [example.source if language == "python" else example.rules or "" for example in (*check.GOOD, *check.BAD)]
        lines = [line.strip() for line in block.splitlines() if line.strip()]
        assert any(all(line in example for line in lines) for example in examples), block


def test_the_checks_do_not_import_torch() -> None:
    code = (
        "import sys, ddplint.checks.registry as r; r.all_checks(); "
        "sys.exit(', '.join({'torch', 'networkx', 'rich'} & set(sys.modules)) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parents[1], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_the_codes_that_are_asked() -> None:
    codes = tuple(check.CODE for check in registry.all_checks())
    assert registry.chosen() == codes
    assert registry.chosen(("DDP2",), ("kept-alive",)) == tuple(c for c in codes if c[3] == "2" and c != "DDP208")
    with pytest.raises(DdplintError, match="--ignore: no rule"):
        registry.chosen(ignore=("DDP8",))


@pytest.mark.parametrize("check", registry.all_checks(), ids=lambda check: check.CODE)
def test_a_page_is_its_summary_and_its_sections(check: Check) -> None:
    page = registry.page(check)
    assert f"\n\n{registry.summary(check)}\n\n## " in page
    assert len(registry.summary(check)) > 20
    for heading in registry.SECTIONS:
        text = registry.section(check, heading)
        assert f"## {heading}\n\n{text}\n" in page
        assert text
        assert "\n## " not in text
