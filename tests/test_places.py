"""Where a finding is shown, the way to it, and its identity."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddplint import places
from ddplint.analysis import Location
from ddplint.checks.base import Case, Finding
from ddplint.places import Repository, repository
from ddplint.rules import RuleFile, TargetSpec
from tests.made import FILE, analysis, entry, line, rules, unused, used

HOME = Repository("/work/project", "/work/project")
LIBRARY = Location("/venv/lib/python3.12/site-packages/library/model.py", 88, "Net.forward")


def finding(*parameters: str, location: Location | None = None, message: str = "message", code: str = "DDP101") -> Finding:
    return Finding(code, "name", "error", message, parameters, location, "what to do")


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/work/project/src/model.py", "src/model.py"),
        ("/work/project/src/../model.py", "model.py"),
        ("src/model.py", "src/model.py"),
        ("../other/model.py", None),
        ("/work/project2/model.py", None),
        (LIBRARY.file, None),
        ("/work/project/.venv/lib/python3.12/site-packages/library/model.py", None),
        ("/work/project/venv/lib/python3/dist-packages/library/model.py", None),
        ("<string>", None),
        ("", None),
    ],
)
def test_a_file_belongs_to_the_repository_or_not(file: str, shown: str | None) -> None:
    assert HOME.relative(file) == shown


def test_the_repository_is_the_folder_with_git_above_the_working_folder(tmp_path: Path) -> None:
    working = tmp_path / "package" / "configs"
    working.mkdir(parents=True)
    assert repository(str(working)).root == str(working)
    (tmp_path / ".git").touch()  # a file, as in a worktree
    repository.cache_clear()
    home = repository(str(working))
    assert home.root == str(tmp_path)
    assert home.relative("rules/a.toml") == "package/configs/rules/a.toml"
    assert home.relative(str(tmp_path / "model.py")) == "model.py"


def test_a_repository_behind_a_link_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "real" / ".git").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    home = repository(str(tmp_path / "link"))
    assert (
        home.relative(str(tmp_path / "real" / "model.py"))
        == home.relative(str(tmp_path / "link" / "model.py"))
        == "model.py"
    )


def test_a_finding_is_shown_at_its_own_place_if_that_is_in_the_repository() -> None:
    case = Case(analysis(unused("a.w", 7)), rules(entry("a")))
    assert places.nearest(case, finding("a.w", location=line(9)), HOME) == Location("model.py", 9, "Net.forward")


def test_else_at_another_place_of_its_parameters_then_the_entry_the_factory_and_the_rule_file(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import torch\n\n\ndef build():\n    pass\n")
    home = Repository(str(tmp_path), str(tmp_path))
    path = str(tmp_path / "rules" / "hybrid.toml")
    inside = Location(str(tmp_path / "model.py"), 5)
    of_library = finding("a.w", location=LIBRARY)

    def shown(case: Case) -> tuple[str, int] | None:
        place = places.nearest(case, of_library, home)
        return (place.file, place.line) if place else None

    hidden = analysis(unused("a.w", location=LIBRARY, bypass=inside))
    dead = analysis(unused("a.w", location=LIBRARY))
    bare = RuleFile(path, "hybrid", "", (), TargetSpec("library.model:build"), rules().ddp, ())
    assert shown(Case(hidden, rules(entry("a", at=12), path=path))) == ("model.py", 5)
    assert shown(Case(dead, rules(entry("a", at=12), path=path))) == ("rules/hybrid.toml", 12)
    assert shown(Case(dead, rules(entry("b", at=12), path=path))) == ("model.py", 4)
    assert shown(Case(dead)) == ("model.py", 4)
    assert shown(Case(dead, bare)) == ("rules/hybrid.toml", 1)
    assert shown(Case(analysis(unused("a.w", location=LIBRARY), target="library.model:build"))) is None


@pytest.mark.parametrize(
    ("source", "name", "number", "function"),
    [
        ("x = 1\ndef build():\n", "build", 2, "build"),
        ("async def build():\n", "build", 1, "build"),
        ("class build:\n", "build", 1, "build"),
        ("x = 1\nbuild = partial(Net, 3)\n", "build", 2, "build"),
        ("x = 1\ndef builder():\n    def build(): ...\n", "build", 1, ""),
    ],
)
@pytest.mark.parametrize("reference", ["package/made.py", "package.made"])
def test_a_factory_is_found_without_importing_it(
    tmp_path: Path, reference: str, source: str, name: str, number: int, function: str
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "made.py").write_text(source)
    case = Case(analysis(target=f"{reference}:{name}"))
    place = places.factory(case, Repository(str(tmp_path), str(tmp_path)))
    assert place is not None
    assert (Path(place.file).name, place.line, place.function) == ("made.py", number, function)


def test_a_source_that_cannot_be_read_has_no_places(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_bytes(b"\xff\xfe\x00")
    assert places.factory(Case(analysis(target="made.py:build")), Repository(str(tmp_path), str(tmp_path))) is None


def test_the_way_goes_from_the_factory_over_the_cut_to_the_loss(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text("def build(): ...\n\n\n\n\n\n\n\ndef loss(output): ...\n")
    cut = Location(str(model), 5, "Net.forward", "with torch.no_grad():")
    group = [unused(f"a.{name}", location=cut, cause="severed", why="gradients are off") for name in "wb"]
    case = Case(analysis(*group, target=f"{model}:build"))
    steps = places.way(case, finding("a.w", "a.b", location=cut), Repository(str(tmp_path), str(tmp_path)))
    assert [(place.file, place.line, sentence) for place, sentence in steps] == [
        ("model.py", 1, "the model is made here, with `a.w`"),
        ("model.py", 5, "`a.w` is severed: gradients are off"),
        ("model.py", 9, "the loss is made here"),
    ]


def test_there_is_no_way_where_the_cut_is_not_in_the_repository() -> None:
    case = Case(analysis(unused("a.w", location=LIBRARY), used("b.w")))
    assert places.way(case, finding("a.w", location=LIBRARY), HOME) == []
    assert places.way(case, finding("b.w"), HOME) == []
    assert places.way(case, finding(), HOME) == []


def test_a_way_shows_what_hides_a_used_parameter() -> None:
    hidden = used("a.w", checkpoint=line(5), bypass=line(6), zeroed=line(7))
    steps = places.way(Case(analysis(hidden)), finding("a.w"), HOME)
    assert [(place.line, sentence.split("`")[0]) for place, sentence in steps] == [
        (5, "a re-entrant checkpoint hides "),
        (6, "the loss uses "),
        (7, "all that "),
    ]


def test_the_loss_of_a_rule_file_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text("def build(): ...\ndef measure(output): ...\ndef train(model): ...\n")
    home = Repository(str(tmp_path), str(tmp_path))

    def found(**spec: str) -> int | None:
        target = TargetSpec("made.py:build", base=str(tmp_path), **spec)  # type: ignore[arg-type]
        place = places.loss(Case(analysis(), RuleFile("r.toml", "r", "", (), target, rules().ddp, ())), home)
        return place.line if place else None

    assert (found(loss="made.py:measure"), found(step="made.py:train")) == (2, 3)
    assert (found(loss="head.loss"), found()) == (None, None)


def test_fingerprints_are_of_code_type_and_parameters_and_stay_when_lines_move() -> None:
    def prints(
        title: str = "hybrid", at: int = 7, code: str = "DDP101", names: tuple[str, ...] = ("a.w", "a.b")
    ) -> list[str]:
        return places.fingerprints(title, [finding(*names, location=line(at), message=f"at model.py:{at}", code=code)])

    (one,) = prints()
    assert len(one) == 32
    assert prints(at=70) == prints(names=("a.b", "a.w")) == [one]
    assert len({one, *prints("cmim"), *prints(code="DDP201"), *prints(names=("a.w",))}) == 4


def test_findings_without_parameters_go_by_function_and_words() -> None:
    def prints(*messages: str) -> list[str]:
        return places.fingerprints("hybrid", [finding(message=message, location=line(3)) for message in messages])

    assert prints("22 paths were traced") == prints("1,405 paths were traced")
    assert len(set(prints("`a.*` names nothing", "`b.*` names nothing"))) == 2


def test_findings_that_are_alike_go_by_their_order() -> None:
    twice = [finding("a.w", location=line(3)), finding("a.w", location=line(4))]
    first, second = places.fingerprints("hybrid", twice)
    assert first != second
    assert places.fingerprints("hybrid", twice[:1]) == [first]


def test_what_a_finding_is_about_is_in_its_order_and_known() -> None:
    case = Case(analysis(unused("a.w"), unused("b.w")))
    assert [p.name for p in places.about(case, finding("b.w", "gone", "a.w", "b.w"))] == ["b.w", "a.w"]
    assert FILE.startswith(HOME.root)
