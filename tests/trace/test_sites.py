from __future__ import annotations

import linecache
import random
import sys
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.utils import parametrize
from torch.utils._contextlib import _DecoratorContextManager

from ddplint.reference import finetune
from ddplint.trace.sites import Site, call_site, decorated_site, locate, read_site, span
from tests.kinds.lines import line_of

HERE = __file__


def here() -> Site:
    site = call_site(sys._getframe(0))
    assert site is not None
    return site


class Asks(nn.Module):
    """Notes the place that explains its call."""

    site: Site | None = None

    def forward(self, x: Any) -> Any:
        Asks.site = call_site(sys._getframe(0).f_back)  # as if it were PyTorch's own
        return x


def test_the_place_is_the_innermost_line_of_the_users_code() -> None:
    def inner() -> Site:
        return here()

    assert inner().location().function == "here"


def test_an_instruction_has_the_columns_of_its_expression() -> None:
    sites = (call_site(sys._getframe(0)), call_site(sys._getframe()))
    texts = []
    for site in sites:
        assert site is not None
        first, last = span(site.code, site.at)
        texts.append(linecache.getline(HERE, site.line)[first:last])
    assert texts == ["call_site(sys._getframe(0))", "call_site(sys._getframe())"]


def test_a_loops_condition_is_one_place_however_often_it_was_compiled() -> None:
    seen = []

    def asked() -> bool:
        site = read_site(sys._getframe(1))
        assert site is not None
        seen.append((site.line, span(site.code, site.at)))
        return len(seen) < 4

    while asked():
        pass
    assert len(seen) == 4
    assert len(set(seen)) == 1


def test_a_function_is_as_many_places_as_there_are_calls_of_it() -> None:
    def ask() -> Site:
        site = read_site(sys._getframe(0))
        assert site is not None
        return site

    one = ask()
    assert one.caller is not None
    again = [ask() for _ in range(2)]
    assert one == again[0]  # the line is the same
    assert one.caller != again[0].caller
    assert again[0].caller == again[1].caller


def test_a_module_is_one_place_whoever_calls_it() -> None:
    class Reads(nn.Module):
        def forward(self, x: int) -> Site | None:
            return read_site(sys._getframe(0))

    site = Reads()(1)
    assert site is not None
    assert site.caller is None


def test_pytorch_in_between_is_passed_over() -> None:
    nn.Sequential(nn.Identity(), Asks())(1)  # the users line
    assert Asks.site is not None
    location = Asks.site.location()
    assert (location.file, location.line) == (HERE, line_of(HERE, "the users line"))
    assert location.text == "nn.Sequential(nn.Identity(), Asks())(1)  # the users line"
    assert location.function == "test_pytorch_in_between_is_passed_over"
    assert Asks.site.inner_text() == ""


def test_a_library_in_between_is_named_beside_the_users_line() -> None:
    seen = _from_a_library(lambda: call_site(sys._getframe(1)))
    assert seen is not None
    assert seen.line == line_of(HERE, "calls a library")
    assert seen.inner_text() == "library/module.py:3"


def _from_a_library(ask: Any) -> Site | None:
    """``ask()`` called from installed code."""
    code = compile("\ndef run(ask):\n    return ask()\n", "/opt/site-packages/library/module.py", "exec")
    space: dict[str, Any] = {}
    exec(code, space)
    found: Site | None = space["run"](ask)  # calls a library
    return found


def test_where_all_is_installed_the_innermost_library_line_stands() -> None:
    code = compile("site = ask(frame())", "/opt/site-packages/library/alone.py", "exec")

    class Frame:
        """The library's frame with nobody above it."""

    space: dict[str, Any] = {"ask": lambda frame: frame, "frame": lambda: sys._getframe(1)}
    exec(code, space)
    frame = space["site"]
    assert frame.f_code.co_filename == "/opt/site-packages/library/alone.py"
    alone: Any = Frame()
    alone.f_code, alone.f_lineno, alone.f_lasti, alone.f_back = frame.f_code, 1, -1, None
    site = call_site(alone)
    assert site == Site(frame.f_code, 1)


def test_nowhere_is_none() -> None:
    space: dict[str, Any] = {}
    exec(compile("def run(): pass", "<string>", "exec"), space)

    class Frame:
        f_code = space["run"].__code__
        f_lineno = 1
        f_lasti = -1
        f_back = None

    nowhere: Any = Frame()
    assert call_site(nowhere) is None


def test_the_reference_model_is_a_target_like_any_other() -> None:
    class Frame:
        f_code = finetune.task_head.__code__
        f_lineno = 30
        f_lasti = -1
        f_back = None

    frame: Any = Frame()
    assert call_site(frame) == Site(finetune.task_head.__code__, 30)


def test_a_place_in_a_file_that_is_gone_has_no_text() -> None:
    code = compile("x = 1", "/nowhere/gone.py", "exec")
    location = locate(code, 1)
    assert (location.file, location.line, location.text) == ("/nowhere/gone.py", 1, "")


def test_columns_are_those_of_the_operation_in_characters() -> None:
    nn.Identity()("größe"), Asks()(1)  # after what is no ASCII
    assert Asks.site is not None
    location = Asks.site.location()
    assert location.columns is not None
    source = Path(HERE).read_text().splitlines()[location.line - 1]
    assert source[slice(*location.columns)] == "Asks()(1)"


def test_of_an_operation_over_several_lines_the_columns_are_those_on_the_first() -> None:
    Asks()(  # goes on below
        1
    )
    assert Asks.site is not None
    location = Asks.site.location()
    assert location.columns == (4, len("    Asks()(  # goes on below"))
    assert location == locate(Asks.site.code, location.line)  # the line is what is compared


def test_a_place_in_a_library_has_no_columns_on_the_users_line() -> None:
    seen = _from_a_library(lambda: call_site(sys._getframe(1)))
    assert seen is not None
    assert seen.inner is not None
    assert seen.location().columns is None


def test_random_and_contextlib_draw_and_enter_for_others() -> None:
    seen: list[Site | None] = []

    class Watching(random.Random):
        def random(self) -> float:
            seen.append(call_site(sys._getframe(1)))
            return 0.5

    Watching().uniform(0, 1)  # draws
    assert seen[0] is not None
    assert seen[0].line == line_of(HERE, "draws")


def test_a_decorated_function_is_the_place_of_its_decorator() -> None:
    noted: list[Site | None] = []

    class Noting(_DecoratorContextManager):
        def __enter__(self) -> None:
            noted.append(decorated_site(sys._getframe(1)))

        def __exit__(self, *exc: object) -> None:
            return None

    @Noting()  # decorates
    def decorated() -> None:
        return None

    decorated()
    with Noting():
        pass
    first, second = noted
    assert first is not None
    assert first.location().line == line_of(HERE, "decorates")
    assert first.location().function.endswith("decorated")
    assert second is None


def test_a_with_statement_decorates_nothing() -> None:
    assert decorated_site(sys._getframe(0)) is None


def test_a_parametrization_is_explained_by_the_line_that_reads_the_weight() -> None:
    linear = nn.Linear(2, 2)
    parametrize.register_parametrization(linear, "weight", Asks())
    linear.weight.sum()  # reads the weight
    assert Asks.site is not None
    assert Asks.site.line == line_of(HERE, "reads the weight")
