"""The formats, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

import ddplint.report
from ddplint.errors import DdplintError
from ddplint.report import FORMATS, Report, Result, render
from tests.made import analysis, used


def test_every_file_of_the_folder_is_a_format_but_for_what_these_are_made_of() -> None:
    folder = Path(ddplint.report.__file__).parent
    files = {path.stem.rstrip("_") for path in folder.glob("[a-z]*.py")} - {"model", "details", "terminal"}
    assert set(FORMATS) == files
    assert {"text", "json", "github"} <= files


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_every_format_renders_any_number_of_results_and_ends_its_last_line(format: str, count: int) -> None:
    text = render(format, Report((Result(analysis(used("a.w"))),) * count, folder="/work/project"))
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(DdplintError, match=r"--format: no such format 'yaml'; one of .*github"):
        render("yaml", Report(()))
