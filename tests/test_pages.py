"""The pages in docs/: those of the rules are as the checks are, and what the others name is there."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from ddplint.checks import registry
from tests.test_rehearse import KNOWN

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CODES = [check.CODE for check in registry.all_checks()]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", DOCS / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_rule_has_its_page_as_the_check_is(script: ModuleType) -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "rules").glob("*.md")}
    assert written == script.pages(), "run: python docs/pages.py"
    assert set(written) == {"README.md", *(f"{code}.md" for code in CODES)}


@pytest.mark.parametrize("code", CODES)
def test_a_page_has_the_text_of_ddplint_rule(code: str) -> None:
    page = (DOCS / "rules" / f"{code}.md").read_text(encoding="utf-8")
    assert page.startswith(registry.page(registry.get(code)))


def test_the_index_links_every_rule_once() -> None:
    index = (DOCS / "rules" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((DDP\d{3})\.md\)", index) == CODES


def test_pages_of_codes_that_are_gone_are_taken_away(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "DDP999.md").write_text("gone")
    script.write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(script.pages())


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_cases_that_the_semantics_table_names_did_what_it_says() -> None:
    truth = json.loads((ROOT / "tests" / "cases" / "truth.json").read_text(encoding="utf-8"))
    text = (DOCS / "semantics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]*\| (\w+) \| (\w+) \| (\w+) \| `(\w+)` \|$", text, re.MULTILINE)
    assert {case: static for _, _, static, case in rows} == KNOWN
    for off, on, _, case in rows:
        assert (truth[case]["ddp_false_outcome"], truth[case]["ddp_true_outcome"]) == (off, on), case
