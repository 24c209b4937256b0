"""Finds the checks by looking into this folder, and runs them: a file put here is a rule.

A check is a module whose file is named after its code (``ddp101_undocumented_unused.py``) and that has what
``base.Check`` lists. A module without a code is support for the checks and is passed over.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import cast, get_args

from ddplint.checks.base import Case, Check, Example, Finding, Severity
from ddplint.errors import DdplintError

SECTIONS = ("What it does", "Why it matters", "Example", "What to do", "Notes")
"""The headings of every page, in this order; a page's first line is its summary."""


def load(folder: Path, package: str = __package__) -> tuple[Check, ...]:
    """The checks in ``folder``, sorted by code; modules are imported as parts of ``package``.

    Raises DdplintError that names the file and everything it lacks, if a check has a wrong shape, or if two
    files have one code.
    """
    checks: dict[str, Check] = {}
    for file in sorted(folder.glob("*.py")):
        if file.stem == "__init__":
            continue
        module = _module(file, package)
        if not (re.match(r"ddp\d", file.stem) or hasattr(module, "CODE")):
            continue
        faults = list(_faults(module, file))
        if faults:
            raise DdplintError("; ".join(faults), where=str(file), fix="see ddplint/checks/base.py, class Check")
        check = cast(Check, module)
        if check.CODE in checks:
            other = checks[check.CODE].__name__.rpartition(".")[2]  # type: ignore[attr-defined]
            raise DdplintError(f"{check.CODE} is also the code of {other}.py", where=str(file))
        checks[check.CODE] = check
    return tuple(checks[code] for code in sorted(checks))


def _module(file: Path, package: str) -> ModuleType:
    name = f"{package}.{file.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None  # a .py file always has a spec
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise DdplintError(f"cannot be imported: {type(error).__name__}: {error}", where=str(file)) from error
    return module


def _faults(module: ModuleType, file: Path) -> Iterable[str]:
    """Everything in which ``module`` is no check, in words."""
    code, name = getattr(module, "CODE", None), getattr(module, "NAME", None)
    if not (isinstance(code, str) and re.fullmatch(r"DDP\d{3}", code)):
        yield 'CODE is missing or not like "DDP101"'
    if not (isinstance(name, str) and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)):
        yield 'NAME is missing or not like "undocumented-unused"'
    elif isinstance(code, str) and file.stem != (stem := f"{code}_{name}".lower().replace("-", "_")):
        yield f"the file should be named {stem}.py after its code and name"
    if getattr(module, "SEVERITY", None) not in get_args(Severity):
        yield f"SEVERITY is missing or none of {', '.join(get_args(Severity))}"
    for examples in ("GOOD", "BAD"):
        value = getattr(module, examples, None)
        if not (isinstance(value, tuple) and value and all(isinstance(example, Example) for example in value)):
            yield f"{examples} is missing or not a tuple of at least one Example"
    function = getattr(module, "check", None)
    if not inspect.isfunction(function):
        yield "the function check(case) is missing"
    elif list(inspect.signature(function).parameters) != ["case"]:
        line = inspect.getsourcelines(function)[1]
        yield f"line {line}: check has to take one argument named case"
    if not module.__doc__:
        yield "the docstring, which is the check's page, is missing"
    elif (headings := tuple(re.findall(r"(?m)^## (.+)$", module.__doc__))) != SECTIONS:
        yield f"the docstring's headings are {list(headings)}, not {list(SECTIONS)}"


@functools.cache
def all_checks() -> tuple[Check, ...]:
    """Every check of this folder, sorted by code."""
    return load(Path(__file__).parent)


def get(code: str) -> Check:
    """The check with this code or name, in any case of letters. Raises DdplintError with a near miss."""
    for check in all_checks():
        if code.upper() == check.CODE or code.lower() == check.NAME:
            return check
    raise _unknown(code, "rule")


def page(check: Check) -> str:
    """The check's page: its code, name and severity as a title, then its docstring."""
    return f"# {check.CODE} {check.NAME} ({check.SEVERITY})\n\n{inspect.cleandoc(check.__doc__ or '')}\n"


def summary(check: Check) -> str:
    """The first line of the check's page."""
    return (check.__doc__ or "").strip().partition("\n")[0]


def section(check: Check, heading: str) -> str:
    """What stands under one of ``SECTIONS`` on the check's page."""
    page = inspect.cleandoc(check.__doc__ or "")
    return page.partition(f"## {heading}\n")[2].partition("\n## ")[0].strip()


def run(case: Case, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Finding, ...]:
    """All findings about ``case``, sorted by code and then as the model is.

    ``select`` and ``ignore`` hold codes, beginnings of codes ("DDP1") or names; an empty ``select`` means
    every check. Raises DdplintError for one that fits no check.
    """
    asked = frozenset(chosen(select, ignore))
    return tuple(finding for check in all_checks() if check.CODE in asked for finding in check.check(case))


def chosen(select: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[str, ...]:
    """The codes of the checks that ``run`` asks, sorted. Raises DdplintError like it."""
    codes = _chosen(select, "--select") if select else {check.CODE for check in all_checks()}
    return tuple(sorted(codes - _chosen(ignore, "--ignore")))


def _chosen(wanted: Sequence[str], option: str) -> set[str]:
    codes = set()
    for word in wanted:
        found = {
            check.CODE
            for check in all_checks()
            if word.lower() == check.NAME or (word and check.CODE.startswith(word.upper()))
        }
        if not found:
            raise _unknown(word, option)
        codes |= found
    return codes


def _unknown(word: str, where: str) -> DdplintError:
    names = [name for check in all_checks() for name in (check.CODE, check.NAME)]
    near = difflib.get_close_matches(word, names, n=1) or difflib.get_close_matches(word.upper(), names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    codes = ", ".join(check.CODE for check in all_checks())
    return DdplintError(f"no rule {word!r}", where=where, fix=f"{hint}the rules are {codes}")
