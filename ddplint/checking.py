"""Between the command line and the rest: what is asked for, traced and checked. Nothing here prints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddplint import files, starter, worker
from ddplint.analysis import Analysis, Parameter, TraceRecord
from ddplint.callsites.find import find, matching
from ddplint.callsites.model import Wrap
from ddplint.checks import registry
from ddplint.checks.base import Case
from ddplint.config import Project, find_rule_file
from ddplint.errors import DdplintError
from ddplint.explain import find as find_parameter
from ddplint.fields import faults, shown
from ddplint.live import Live
from ddplint.report import Report, Result, github
from ddplint.request import Device, Request
from ddplint.rules import FIELDS, RuleFile, TargetSpec, load_rule_file

DEFAULT_FACTORY = "build"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is to be checked: a checkpoint type, or a bare target (``rules`` None)."""

    target: TargetSpec
    rules: RuleFile | None = None

    @property
    def title(self) -> str:
        """How a person calls it: the checkpoint type, else the factory."""
        return self.rules.name if self.rules else self.target.factory


@dataclass(frozen=True, slots=True)
class Options:
    """How to look at a subject, as the command line says; ``timeout`` in seconds. ``live`` is told how far it is."""

    device: Device = "auto"
    paths: int | None = None
    ranks: int = 2
    steps: int = 3
    timeout: float = worker.TIMEOUT
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    verbose: bool = False
    quiet: bool = False
    live: Live | None = None


def bare_target(text: str, folder: Path) -> TargetSpec:
    """The target that "FILE_OR_MODULE[:FACTORY]" names; relative paths start from ``folder``."""
    _, colon, factory = text.rpartition(":")
    return TargetSpec(
        text if colon and factory else f"{text.rstrip(':')}:{DEFAULT_FACTORY}",
        base=str(folder),
        from_module=True,
    )


def chosen(project: Project, names: Sequence[str], every: bool) -> tuple[Subject | DdplintError, ...]:
    """The checkpoint types called ``names``, each once, or ``every`` one of the project; with neither its
    only one.

    A type that can't be had is returned as the error that says why. Raises DdplintError where nothing is
    chosen.
    """
    if names:
        return tuple(_of_name(project, name) for name in dict.fromkeys(names))
    known = all_of(project)
    if every or len(known) == 1:
        return known
    listed = ", ".join(subject.title for subject in known if isinstance(subject, Subject))
    raise DdplintError(
        f"there are {len(known)} checkpoint types" if known else "there is no rule file",
        where=shown(project.rules_dir),
        fix=f"name one with --ckpt, or take --all: {listed}" if known else "name a target with --target",
    )


def only(subjects: Sequence[Subject | DdplintError]) -> Subject:
    """The one subject there is. Raises the DdplintError that stands for it."""
    (subject,) = subjects
    if isinstance(subject, DdplintError):
        raise subject
    return subject


def _of_name(project: Project, name: str) -> Subject | DdplintError:
    try:
        rules = find_rule_file(project, name)
    except DdplintError as error:
        return error
    return Subject(rules.target, rules)


def all_of(project: Project) -> tuple[Subject | DdplintError, ...]:
    """All of the project's types, by name, then what is wrong with the rule files that can't be loaded."""
    subjects: list[Subject] = []
    errors: list[DdplintError] = []
    for path in sorted(project.rules_dir.glob("[!.]*.toml")):
        try:
            rules = find_rule_file(project, load_rule_file(path, project.base).name)  # that no other has its name
        except DdplintError as error:
            errors.append(error)
        else:
            subjects.append(Subject(rules.target, rules))
    return (*sorted(subjects, key=lambda subject: subject.title), *errors)


def type_names(project: Project) -> dict[str, str]:
    """The names of the project's checkpoint types that can be loaded, with their descriptions."""
    types = (subject.rules for subject in all_of(project) if isinstance(subject, Subject))
    return {rules.name: rules.description for rules in types if rules is not None}


def refuse_unknown_codes(options: Options) -> None:
    """Raise DdplintError if ``select`` or ``ignore`` names no check, before a trace is waited for."""
    trace = TraceRecord(device="meta", device_reason="", paths=0, ranks=0, nodes=0, seconds=0.0)
    registry.run(Case(Analysis("", "", (), trace)), options.select, options.ignore)


def request_for(subject: Subject, options: Options, **others: Any) -> Request:
    """What a worker is asked about ``subject``; ``others`` are further fields of a Request."""
    return Request(
        subject.target,
        documented=tuple(glob for entry in subject.rules.unused for glob in entry.params) if subject.rules else (),
        device=options.device,
        paths=options.paths,
        ranks=options.ranks,
        steps=options.steps,
        **others,
    )


def analysed(subject: Subject, options: Options, *, explain: str | None = None, rehearse: bool = False) -> Analysis:
    """What the trace finds about ``subject``, from a worker process. Raises DdplintError.

    ``explain`` names the parameter whose way is wanted; ``rehearse`` asks for DDP's own verdict too.
    """
    request = request_for(subject, options, explain=explain, rehearse=rehearse)
    return worker.run(request, timeout=options.timeout, verbose=options.verbose, quiet=options.quiet, live=options.live)


def checked(subject: Subject | DdplintError, options: Options) -> Result:
    """What the trace and the checks find about ``subject``. Raises DdplintError, also the one it may be."""
    if isinstance(subject, DdplintError):
        raise subject
    wraps, notices = source_wraps(subject)  # first: what is wrong with the source is said before a trace is waited for
    analysis = analysed(subject, options, rehearse=True)
    analysis = replace(analysis, notices=(*analysis.notices, *notices))
    findings = registry.run(Case(analysis, subject.rules, wraps), options.select, options.ignore)
    codes = registry.chosen(options.select, options.ignore)
    return Result(analysis, findings, subject.rules, wraps, codes=codes)


def source_files(subject: Subject) -> tuple[Path, ...]:
    """The files that the rule file names under ``[ddp] source``. Raises DdplintError for a name without a file."""
    if subject.rules is None or not subject.rules.ddp.source:
        return ()
    return tuple(matching(subject.rules.ddp.source, Path(subject.target.base), where=shown(subject.rules.path)))


def source_wraps(subject: Subject) -> tuple[tuple[Wrap, ...], tuple[str, ...]]:
    """The DDP wraps in these files, and a notice where there is none. Raises DdplintError for what can't be read."""
    files = source_files(subject)
    if not files:
        return (), ()
    found = find(files)
    if found.failed:
        raise DdplintError("; ".join(found.notices))
    if not found.wraps:
        return (), (f"no DDP wrap is found in {', '.join(map(shown, files))} ([ddp] source)",)
    return found.wraps, ()


def explained(subject: Subject, name: str, options: Options) -> tuple[Parameter, Analysis]:
    """The parameter that ``name`` means (``find``), and an analysis with its way. Raises DdplintError.

    A first name costs one trace, any other a second.
    """
    analysis = analysed(subject, options, explain=name)
    parameter = find_parameter(analysis.parameters, name)
    if parameter.name != name:
        analysis = analysed(subject, options, explain=parameter.name)
    return parameter, analysis


def started(project: Project, target: str, name: str | None, output: Path | None, options: Options) -> tuple[str, Analysis]:
    """Write a starter rule file for the target ``target``. Returns its path as messages have it, and the trace.

    ``name`` is the checkpoint type's, by default the target's own; ``output`` by default a file of that name in the
    project's rules folder, which is made if there is none. Raises DdplintError where that file exists, or another of
    the project has the name.
    """
    bare = bare_target(target, Path.cwd())
    module = bare.factory.rpartition(":")[0]
    name = name or (Path(module).stem if module.endswith(".py") else module.rpartition(".")[2])
    folder = project.root / "rules" if project.source == "embedded" else project.rules_dir
    path = output or folder / f"{name}.toml"
    _refuse_bad_names(name, bare.factory)
    if path.exists():
        raise DdplintError("exists already", where=shown(path), fix="move it away, or choose another with --output")
    if project.source != "embedded" and (taken := _path_of(project, name)):
        raise DdplintError(f"the type {name} is in {taken} already", where="--ckpt", fix="choose another name")
    if output is not None:
        refuse_missing_folder(output)
    analysis = analysed(Subject(bare), options)
    text = starter.starter(analysis, _from_root(bare, project.root), name)
    if output is None:
        folder.mkdir(exist_ok=True)
    starter.write_new(path, text)
    return shown(path), analysis


def _refuse_bad_names(name: str, factory: str) -> None:
    """Raise DdplintError for what a rule file can't hold, in the words of its own check."""
    for fault in faults(FIELDS, {"checkpoint": {"name": name}, "target": {"factory": factory}}):
        raise DdplintError(fault.sentence, where="--ckpt" if fault.place[0] == "checkpoint" else "--target")


def _path_of(project: Project, name: str) -> str:
    """The rule file of the type ``name``; "" if there is none."""
    try:
        return shown(find_rule_file(project, name).path)
    except DdplintError:
        return ""


def _from_root(bare: TargetSpec, root: Path) -> TargetSpec:
    """``bare`` with its file named from the project's root, where a rule file's paths start."""
    module, _, factory = bare.factory.rpartition(":")
    if module.endswith(".py"):
        module = os.path.relpath(Path(bare.base, module), root)
    return replace(bare, factory=f"{module}:{factory}", base=str(root))


def refuse_missing_folder(path: Path) -> None:
    """Raise DdplintError if the folder of ``path`` is not there, before a trace is waited for."""
    if not path.absolute().parent.is_dir():
        raise DdplintError("no such folder", where=shown(path.parent), fix=f"make it, or name another than {shown(path)}")


def replace_file(path: Path, text: str | bytes) -> None:
    """Write ``text`` (as UTF-8, if it is no bytes) to ``path``, whole or not at all.

    Into what is no regular file (a pipe, /dev/stderr) it goes as it is.

    Raises DdplintError where that can't be done.
    """
    path = path.resolve()
    try:
        files.replace(str(path), text if isinstance(text, bytes) else text.encode("utf-8", errors="backslashreplace"))
    except OSError as error:
        raise DdplintError(f"can't be written: {error.strerror}", where=shown(path), fix="name another file") from None


def add_step_summary(format: str, report: Report) -> tuple[str, ...]:
    """In a step of GitHub Actions, append ``report`` to the job's summary if it is written as ``github``.

    Returns what is to be said of it: a sentence if the file can't be written, for the report itself is whole without it.
    """
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if format != "github" or not path:
        return ()
    try:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(github.summary(report))
    except OSError as error:
        return (f"{path}: the job's summary can't be written: {error.strerror}; see the report itself",)
    return ()
