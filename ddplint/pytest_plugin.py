"""pytest: the fixture ``ddplint``, and ``--ddplint``, with which every rule file of the project is a test.

Each check runs in a worker process of its own, as the command line's does: the test process keeps its torch, its process
group, its generators and its patches, and a target that hangs or dies fails one test. pytest imports this file on every
start, so that nothing of weight is imported before a check is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ddplint.config import Project


class ContractBroken(AssertionError):
    """A checkpoint type does not do what its rule file says; the text is the report."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--ddplint``."""
    group = parser.getgroup("ddplint")
    group.addoption("--ddplint", action="store_true", help="Check every rule file of the project, each as a test.")


def pytest_configure(config: pytest.Config) -> None:
    """Add the project's rules folder to what is collected, unless that is in there already."""
    if not config.getoption("ddplint"):
        return
    folder = _project(config).rules_dir.resolve()
    named = [Path(config.invocation_params.dir, argument.split("::")[0]).resolve() for argument in config.args]
    if not any(path in (folder, *folder.parents) or folder in path.parents for path in named):
        config.args.append(str(folder))


def _project(config: pytest.Config) -> Project:
    """The project that pytest runs in. Raises UsageError where it has no rule files of its own."""
    from ddplint.config import find_project
    from ddplint.errors import DdplintError

    try:
        project = find_project(config.rootpath)
    except DdplintError as error:
        raise pytest.UsageError(f"ddplint: {error}") from None
    if project.source == "embedded":
        raise pytest.UsageError(
            f"ddplint: no rule files in {config.rootpath}; `ddplint init` writes one, [tool.ddplint] rules names a folder"
        )
    return project


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A rule file as a collector of one test."""
    if not parent.config.getoption("ddplint") or file_path.suffix != ".toml" or file_path.name.startswith("."):
        return None
    if file_path.resolve().parent != _project(parent.config).rules_dir.resolve():
        return None
    collector: pytest.Collector = RuleFile.from_parent(parent, path=file_path)
    return collector


class RuleFile(pytest.File):
    """A rule file."""

    def collect(self) -> Iterator[pytest.Item]:
        """The one test that it is, named after its checkpoint type."""
        yield Contract.from_parent(self, name=_name(self.path))


def _name(path: Path) -> str:
    """The checkpoint type that the rule file names, or its stem where it is too broken to say."""
    from ddplint.errors import DdplintError
    from ddplint.fields import read_toml

    try:
        checkpoint = read_toml(path).data.get("checkpoint")
    except DdplintError:
        return path.stem
    name = checkpoint.get("name") if isinstance(checkpoint, dict) else None
    return name if isinstance(name, str) else path.stem


class Contract(pytest.Item):
    """One checkpoint type against its rule file."""

    def runtest(self) -> None:
        """Check it. Raises ContractBroken with the report, or DdplintError with what could not be checked."""
        from ddplint.rules import load_rule_file

        project = _project(self.config)
        name = load_rule_file(self.path, project.base).name  # a broken file is a failure of its own
        for notice in _hold(project, name):
            self.add_report_section("call", "ddplint", f"note: {notice}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The report, or the one line that says what could not be checked; no traceback."""
        from ddplint.errors import DdplintError

        if isinstance(excinfo.value, ContractBroken):
            return str(excinfo.value)
        if isinstance(excinfo.value, DdplintError):
            return f"error: {excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """File, line and name, as pytest shows them."""
        return self.path, 0, f"ddplint {self.name}"


def _hold(project: Project, name: str, **options: Any) -> Iterable[str]:
    """Check the type ``name`` of ``project``; returns the notices. Raises ContractBroken and DdplintError."""
    __tracebackhide__ = True
    from ddplint import checking
    from ddplint.report import Report, render

    (subject,) = checking.chosen(project, [name], every=False)
    defaults = {key: getattr(project, key) for key in ("device", "timeout", "select", "ignore")}
    result = checking.checked(subject, checking.Options(**{**defaults, "quiet": True, **options}))
    report = Report((result,), folder=str(Path.cwd()))
    if report.fails:
        raise ContractBroken(render("text", report))
    return result.analysis.notices


class Contracts:
    """The fixture ``ddplint``."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def assert_contract(self, ckpt: str, **options: Any) -> None:
        """Fail the test, with the text report, unless checkpoint type ``ckpt`` does what its rule file says.

        ``options`` are those of ``ddplint check``: ``device``, ``paths``, ``ranks``, ``steps``, ``timeout`` in seconds,
        ``select`` and ``ignore`` as tuples of codes.
        """
        __tracebackhide__ = True
        from ddplint.errors import DdplintError

        try:
            _hold(_project(self._config), ckpt, **options)
        except ContractBroken as broken:
            pytest.fail(str(broken), pytrace=False)
        except DdplintError as error:
            pytest.fail(f"error: {error}", pytrace=False)


@pytest.fixture(scope="session")
def ddplint(pytestconfig: pytest.Config) -> Contracts:
    """``ddplint.assert_contract("hybrid")``: the checkpoint types of this project, each held against its rule file."""
    return Contracts(pytestconfig)
