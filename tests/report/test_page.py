"""The page in headless Chromium, opened from disk: what a person does with a mouse, a keyboard or a screen reader."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddplint.analysis import ModuleEdge, Parameter
from ddplint.report import Report, Result, render
from tests.made import analysis, entry, frozen, line, rehearsal, rules, unused, used

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[browser]'")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
NASTY = "</script><img src=x onerror=alert(1)><b>bold</b>"


def result(name: str = "hybrid", *more: Parameter) -> Result:
    """A model with a part of each status: severed, documented, sometimes used, frozen."""
    place: dict[str, Any] = {
        "location": line(9, "h = self.encoder(x).detach()"),
        "cause": "severed",
        "why": "`detach` cuts the gradient",
    }
    found = analysis(
        used("head.weight", numel=400),
        used("head.bias", numel=20),
        unused("encoder.layers.0.weight", numel=300, **place),
        unused("encoder.layers.1.weight", numel=300, **place),
        unused("old.weight", numel=200),
        unused("gate.weight", 12, cause="conditional", usage="sometimes", numel=150),
        frozen("tokens.weight", numel=100),
        *more,
        rehearsal=rehearsal("reduction_error"),
        flow=(
            ModuleEdge(None, "head", "gradient"),
            ModuleEdge("head", "encoder.layers.1", "cut", line(9, "h = self.encoder(x).detach()")),
            ModuleEdge("encoder.layers.1", "encoder.layers.0", "cut"),
            ModuleEdge("head", "gate", "gradient"),
        ),
    )
    one = rules(entry("old.*", reason="the head of the pretraining"))
    return Result(found, (), replace(one, name=name))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser is installed (looked for {', '.join(BROWSERS)})")
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS  # Chromium refuses root in a sandbox
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=flags)
        yield started
        started.close()


class Opened:
    """A page in a window of its own, and what it said and asked for."""

    def __init__(self, browser: Any, folder: Path, *results: Result, scheme: str = "light", width: int = 1440) -> None:
        file = folder / "page.html"
        file.write_text(render("html", Report(results, folder="/work/project")), encoding="utf-8")
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector(".plot .slice")
        self.uri = file.as_uri()

    def _dismiss(self, dialog: Any) -> None:
        self.said.append("a dialog")
        dialog.dismiss()

    def text(self, selector: str) -> str:
        """The visible text of an element, in one line."""
        text: str = self.page.locator(selector).inner_text()
        return " ".join(text.split())

    def row(self, path: str) -> Any:
        return self.page.locator(f'[role="treeitem"][data-path="{path}"]')

    def rows(self) -> list[str]:
        paths: list[str] = self.page.locator('[role="treeitem"]').evaluate_all("rows => rows.map(row => row.dataset.path)")
        return paths

    def focused(self) -> str:
        path: str = self.page.evaluate("document.activeElement.dataset.path ?? document.activeElement.id")
        return path


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    one = Opened(browser, tmp_path, result())
    yield one
    one.page.context.close()


@pytest.fixture
def three(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    one = Opened(browser, tmp_path, *(result(name) for name in ("grover_base", "cmim", "hybrid")))
    yield one
    one.page.context.close()


def test_it_opens_from_disk_without_a_word_and_without_the_network(opened: Opened) -> None:
    assert opened.text("h1") == "hybrid passes"
    assert opened.said == []
    assert opened.asked == [opened.uri]


def test_a_click_into_the_map_shows_the_module(opened: Opened) -> None:
    opened.page.locator(".plot .slice", has_text="old").last.click()
    details = opened.text("#details")
    assert "old unused, documented" in details
    assert "The parameter is unused, documented: uncalled" in details
    assert opened.row("old").get_attribute("aria-selected") == "true"


def test_a_click_into_a_group_goes_deeper_and_its_bar_back(opened: Opened) -> None:
    slices = opened.page.locator(".plot .slice")
    before = slices.count()
    opened.page.locator(".plot .slice", has_text="encoder").first.click(position={"x": 10, "y": 8})
    assert opened.text("figure .crumbs").replace(" ", "") == "model.encoder"
    assert slices.count() < before
    opened.page.locator("figure .crumbs").get_by_role("button", name="model").click()
    assert slices.count() == before
    assert opened.said == []


def test_a_large_model_is_not_drawn_whole(browser: Any, tmp_path: Path) -> None:
    many = (used(f"blocks.{n}.{part}.weight") for n in range(200) for part in ("up", "down", "gate"))
    large = Opened(browser, tmp_path, result("hybrid", *many))
    assert large.page.locator(".plot .slice").count() <= 300
    large.page.locator(".plot .slice", has_text="57").first.click()
    assert large.text("figure .crumbs").replace(" ", "") == "model.blocks.57"
    assert large.page.locator(".plot .slice").count() == 4
    large.page.context.close()


def test_the_details_tell_the_cause_the_source_line_and_the_entry(opened: Opened) -> None:
    opened.row("old").click()
    details = opened.text("#details")
    assert "old.weight has a reason" in details
    assert "model.py:7 in Net.forward" in details
    assert "rules/hybrid.toml:12 The head of the pretraining." in details
    assert 'params = ["old.*"]' in details


def test_a_cut_is_told_with_its_source_line(opened: Opened) -> None:
    opened.row("encoder").click()
    details = opened.text("#details")
    assert "All 2 parameters are unused, undocumented: severed" in details
    assert "h = self.encoder(x).detach()" in details
    assert "No entry of rules/hybrid.toml documents this." in details
    assert "Gradient comes from head — the gradient is cut at model.py:9" in details


def test_rows_stand_in_the_order_in_which_the_gradient_comes(opened: Opened) -> None:
    assert opened.rows()[1:3] == ["", "head"]
    assert opened.rows().index("head") < opened.rows().index("encoder") < opened.rows().index("old")


def test_the_flow_unfolds_and_folds(opened: Opened) -> None:
    opened.page.get_by_role("button", name="Fold all", exact=True).click()
    assert "encoder.layers" not in opened.rows()
    opened.row("encoder").locator(".twist").click()
    assert "encoder.layers" in opened.rows()
    opened.row("encoder").dblclick()
    assert "encoder.layers" not in opened.rows()
    opened.page.get_by_role("button", name="Unfold all").click()
    assert "encoder.layers.1" in opened.rows()


def test_lines_are_drawn_between_the_rows_that_are_there(opened: Opened) -> None:
    opened.page.get_by_role("button", name="Fold all", exact=True).click()
    assert opened.page.locator("#lanes path.edge.gradient").count() == 2
    assert opened.page.locator("#lanes path.edge.cut").count() == 1
    opened.page.get_by_role("button", name="Unfold all").click()
    assert opened.page.locator("#lanes path.edge.cut").count() == 2


def test_the_keyboard_alone_comes_to_the_details(opened: Opened) -> None:
    press = opened.page.keyboard.press
    for _ in range(40):
        press("Tab")
        if opened.page.evaluate("document.activeElement.getAttribute('role')") == "treeitem":
            break
    press("Home")
    press("ArrowDown")
    assert opened.focused() == ""
    press("e")
    assert opened.focused() == "encoder"
    if opened.row("encoder").get_attribute("aria-expanded") == "false":
        press("ArrowRight")
    press("ArrowRight")
    assert opened.focused() == "encoder.layers"
    press("ArrowLeft")
    press("ArrowLeft")
    assert opened.row("encoder").get_attribute("aria-expanded") == "false"
    press("End")
    press("ArrowUp")
    press("Enter")
    assert opened.focused() == "details"
    assert opened.page.locator('[aria-selected="true"]').count() == 1


def test_focus_is_seen(opened: Opened) -> None:
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("Tab")
    assert opened.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_table_is_searched_filtered_and_sorted(opened: Opened) -> None:
    names = "#table tbody tr td:first-child"
    assert opened.page.locator(names).count() == 7
    opened.page.get_by_label("Search").fill("pretraining")
    assert opened.page.locator(names).all_inner_texts() == ["old.weight"]
    assert opened.text("#found") == "1 parameter of 7, 800 B"
    opened.page.get_by_label("Search").fill("")
    opened.page.get_by_label("Status").select_option("unused")
    assert opened.page.locator(names).count() == 4
    opened.page.get_by_role("button", name="Bytes").click()
    assert opened.page.locator(names).first.inner_text() == "encoder.layers.0.weight"
    assert opened.page.locator('th[aria-sort="descending"]').inner_text().startswith("Bytes")
    opened.page.get_by_role("button", name="Bytes").click()
    assert opened.page.locator(names).first.inner_text() == "gate.weight"


def test_a_name_in_the_table_shows_its_module(opened: Opened) -> None:
    opened.page.get_by_role("button", name="encoder.layers.1.weight").click()
    assert "encoder.layers.1" in opened.text("#details h3")
    assert "encoder.layers.1" in opened.rows()


def test_a_long_table_has_pages(browser: Any, tmp_path: Path) -> None:
    many = Opened(browser, tmp_path, result("hybrid", *(used(f"blocks.{n}.weight") for n in range(150))))
    assert many.text("#page") == "Page 1 of 2"
    many.page.get_by_role("button", name="Next").click()
    assert many.page.locator("#table tbody tr").count() == 57
    many.page.context.close()


def test_the_theme_follows_the_system_and_the_button(browser: Any, tmp_path: Path) -> None:
    dark = Opened(browser, tmp_path, result(), scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    before = dark.page.evaluate(ground)
    dark.page.get_by_role("button", name="Light theme").click()
    assert dark.page.evaluate(ground) != before
    dark.page.reload()
    assert dark.page.evaluate("document.documentElement.dataset.theme") == "light"
    assert dark.said == []
    dark.page.context.close()


def test_checkpoint_types_stand_side_by_side(three: Opened) -> None:
    boxes = [box.bounding_box() for box in three.page.locator("article.card").all()]
    assert len({round(box["y"]) for box in boxes}) == 1
    assert three.page.locator(".plot").count() == 3
    three.page.get_by_role("radio", name="cmim").click()
    three.row("old").click()
    assert "Details · cmim" in three.text("#details h2")
    assert "hybrid unused, documented" in three.text("#details")
    three.page.get_by_role("radio", name="cmim").press("ArrowRight")
    assert three.page.get_by_role("radio", name="hybrid").get_attribute("aria-checked") == "true"


def test_what_stands_in_names_and_source_lines_stays_text(browser: Any, tmp_path: Path) -> None:
    bad = unused(f"{NASTY}.w", location=line(3, NASTY), why=NASTY, module_type=NASTY)
    one = Opened(browser, tmp_path, result(NASTY, bad))
    one.page.locator("#table tbody button", has_text="onerror").click()
    assert NASTY in one.text("#details")
    assert one.page.locator("img, main b").count() == 0
    assert NASTY in one.page.locator(".plot .slicetext", has_text="onerror").first.text_content()
    assert one.said == []
    assert one.asked == [one.uri]
    one.page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_wrong(browser: Any, tmp_path: Path, scheme: str) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install -e '.[browser]'"
    )
    one = Opened(browser, tmp_path, result("cmim"), result(), scheme=scheme)
    one.row("old").click()
    found = axe.Axe().run(one.page).response["violations"]
    assert [(fault["id"], [node["html"][:200] for node in fault["nodes"]]) for fault in found] == []
    one.page.context.close()


def test_a_narrow_window_has_no_sideways_scrolling(browser: Any, tmp_path: Path) -> None:
    narrow = Opened(browser, tmp_path, result(), result("cmim"), width=400)
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= 400
    narrow.page.context.close()
