"""The command line: parse, call, print, exit. Exit codes: 0 clean, 1 findings, 2 could not check."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, get_args

import click
from click.shell_completion import CompletionItem, get_completion_class

import ddplint
from ddplint import (
    baseline,
    cache,
    checking,
    cost,
    decode,
    explain,
    inputs,
    listing,
    live,
    schema,
    settings,
    stored,
    strip,
    update,
    verify,
    wraps,
)
from ddplint.callsites.find import Found
from ddplint.checking import Options, Subject
from ddplint.checks import registry
from ddplint.config import Project, find_project
from ddplint.errors import DdplintError, unwritten
from ddplint.report import FORMATS, Report, Result, Unchecked, View, for_a_person, is_terminal, ready, render
from ddplint.request import Device
from ddplint.worker import EngineError

CLEAN, FINDINGS, NOT_CHECKED, INTERRUPTED = 0, 1, 2, 130

_Command = Callable[..., int]


def main(arguments: list[str] | None = None, answer: cache.Answer | None = None) -> NoReturn:
    """Run the command line (``sys.argv`` by default) and exit; what goes wrong is a line on stderr.

    ``answer`` gets what a check prints, and its exit code when it has come to its end.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # source lines hold what a terminal may not know
    try:
        code = group.main(arguments, prog_name="ddplint", standalone_mode=False, obj=answer)
    except click.Abort:
        code = INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = NOT_CHECKED
    sys.exit(code)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(ddplint.__version__, message="%(prog)s %(version)s")
def group() -> None:
    """Which trainable parameters of a PyTorch model never receive a gradient under DDP, and why.

    Exit codes: 0 clean, 1 findings of severity error or warning, 2 could not check.
    """


def _command(name: str, parent: click.Group | None = None) -> Callable[[_Command], click.Command]:
    """A command of ``parent`` (``group``) that returns its exit code; what can't be done is one line on stderr and a 2."""

    def make(function: _Command) -> click.Command:
        @functools.wraps(function)
        def run(debug: bool, **options: Any) -> int:
            try:
                return function(**options)
            except Exception as error:
                _say_error(error, debug)
                return NOT_CHECKED

        command = (parent or group).command(name)(run)
        command.params.append(click.Option(["--debug"], is_flag=True, help="Show the traceback if ddplint itself fails."))
        return command

    return make


def _unforeseen(error: Exception) -> EngineError:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__}: {error} (at {frame.filename}:{frame.lineno} in {frame.name})"
    return EngineError(what, traceback="".join(traceback.format_exception(error)))


def _say_error(error: Exception, debug: bool, title: str = "") -> None:
    if not isinstance(error, DdplintError):
        error = _unforeseen(error)
    if debug and isinstance(error, EngineError):
        click.echo(error.traceback.rstrip(), err=True)
    click.echo(f"error: {title}: {error}" if title else f"error: {error}", err=True)


def _say_notices(notices: Iterable[str], title: str, quiet: bool) -> None:
    for notice in notices:
        if not quiet:
            line = f"note: {title}: {notice}" if title else f"note: {notice}"
            click.echo(line, err=True)
            _answer().err += (line if sys.stderr.isatty() else click.unstyle(line)) + "\n"


def _print(text: str, color: bool | None = None) -> None:
    _answer().out += text if color or (color is None and sys.stdout.isatty()) else click.unstyle(text)
    try:
        click.echo(text, nl=False, color=color)
        sys.stdout.flush()
    except OSError as error:
        failure = unwritten(error)
        if failure is not None:
            raise failure from None


def _answer() -> cache.Answer:
    """What this run prints, for the cache."""
    answer = click.get_current_context().obj
    return answer if isinstance(answer, cache.Answer) else cache.Answer()


@contextlib.contextmanager
def _watched(title: str, options: Options) -> Iterator[Options]:
    """``options`` for work that may take long: on a terminal, a line on stderr says how far it is."""
    if options.quiet or not live.can_be_shown(sys.stderr):
        yield options
        return
    with live.shown(title, sys.stderr) as told:
        yield replace(options, live=told)


def _codes(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(code for part in (value or "").split(",") if (code := part.strip()))


def _options(*options: Callable[[_Command], _Command]) -> Callable[[_Command], _Command]:
    return lambda function: functools.reduce(lambda made, option: option(made), reversed(options), function)


def _complete_types(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """The project's checkpoint types that go on from ``typed``; none where they can't be had."""
    try:
        names = checking.type_names(_project(context.params.get("rules")))
    except DdplintError:
        return []
    return [CompletionItem(name, help=description) for name, description in names.items() if name.startswith(typed)]


def _complete_codes(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """The rule codes that go on from ``typed``."""
    checks = registry.all_checks()
    return [CompletionItem(check.CODE, help=check.NAME) for check in checks if check.CODE.startswith(typed.upper())]


_target = click.option(
    "--target",
    metavar="FILE_OR_MODULE[:FACTORY]",
    help="A model factory without a rule file (default factory: build).",
)
_rules = click.option("--rules", metavar="DIR", type=click.Path(path_type=Path), help="The folder of the rule files.")
_device = click.option("--device", type=click.Choice(get_args(Device)), help="Where to trace; auto: meta where that can be.")
_paths = click.option("--paths", type=click.IntRange(min=1), metavar="N", help="Trace at most N paths.")
_running = _options(
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="End a target that takes longer (default: 300).",
    ),
    click.option("--verbose", is_flag=True, help="Say more; let warnings of Python and PyTorch through to stderr."),
    click.option("--quiet", is_flag=True, help="Findings alone; neither notices nor what the target prints on stderr."),
)
_tracing = _options(
    _device,
    _paths,
    click.option(
        "--ranks",
        type=click.IntRange(min=1),
        default=2,
        show_default=True,
        metavar="N",
        help="Ranks to trace.",
    ),
    click.option(
        "--steps",
        type=click.IntRange(min=1),
        default=3,
        show_default=True,
        metavar="N",
        help="Steps to trace.",
    ),
    _running,
)
_one_type = click.option(
    "--ckpt", metavar="NAME", shell_complete=_complete_types, help="The checkpoint type; not needed where there is only one."
)


_output = click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the report there, not to stdout.",
)


def _types(
    one: str = "A checkpoint type; may be given several times.", every: str = "Every checkpoint type of the project."
) -> Callable[[_Command], _Command]:
    """--ckpt, which may be repeated, and --all, with their helps."""
    return _options(
        click.option("--ckpt", multiple=True, metavar="NAME", shell_complete=_complete_types, help=one),
        click.option("--all", "every", is_flag=True, help=every),
    )


def _project(rules: Path | None) -> Project:
    try:
        working = Path.cwd()
    except FileNotFoundError:
        raise DdplintError("the working folder is gone", fix="change into one that exists") from None
    return find_project(working, rules)


def _how(
    project: Project,
    device: Device | None,
    timeout: float | None,
    select: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
    **others: Any,
) -> Options:
    """The command line's options over the project's settings."""
    return Options(
        device=device or project.device,
        timeout=timeout or project.timeout,
        select=select or project.select,
        ignore=ignore or project.ignore,
        **others,
    )


def _subject(project: Project, ckpt: str | None, target: str | None) -> Subject:
    """The one type or target that is meant."""
    if target is not None:
        if ckpt is not None:
            raise DdplintError("--ckpt and --target exclude each other", fix="give one of them")
        return Subject(checking.bare_target(target, Path.cwd()))
    return checking.only(checking.chosen(project, [ckpt] if ckpt is not None else [], every=False))


def _refuse_several(ckpt: tuple[str, ...], every: bool, target: str | None) -> None:
    if sum((bool(ckpt), every, target is not None)) > 1:
        raise DdplintError("--ckpt, --all and --target exclude each other", fix="give one of them")


def _meant(project: Project, ckpt: tuple[str, ...], every: bool, target: str | None) -> tuple[Subject | DdplintError, ...]:
    """The types or the one target that are meant; a type that can't be had as the error that says why."""
    return (_subject(project, None, target),) if target is not None else checking.chosen(project, ckpt, every)


def _all_subjects(project: Project, ckpt: tuple[str, ...], every: bool, target: str | None) -> list[Subject]:
    """As ``_meant``, none of them broken."""
    _refuse_several(ckpt, every, target)
    return [checking.only([subject]) for subject in _meant(project, ckpt, every, target)]


@_command("check")
@_types()
@_target
@_rules
@_tracing
@click.option("--format", "format_", type=click.Choice(FORMATS), default="text", show_default=True)
@_output
@click.option(
    "--select",
    metavar="CODES",
    callback=_codes,
    help="Only these rules: codes or their beginnings, with commas.",
)
@click.option("--ignore", metavar="CODES", callback=_codes, help="Without these rules.")
@click.option("--base", metavar="REV", help="Only what has changed since this git revision (DDP107).")
@click.option("--exit-zero", is_flag=True, help="Exit 0 in spite of findings (not if something could not be checked).")
@click.option("--no-cache", is_flag=True, help="Trace even if nothing has changed since the last time.")
@click.option("--statistics", is_flag=True, help="How many findings of each code and parameters of each cause.")
@click.option("--show-settings", is_flag=True, help="Print the settings in force and where each is from; check nothing.")
def _check(
    ckpt: tuple[str, ...],
    every: bool,
    target: str | None,
    rules: Path | None,
    format_: str,
    output: Path | None,
    base: str | None,
    exit_zero: bool,
    no_cache: bool,
    statistics: bool,
    show_settings: bool,
    **how: Any,
) -> int:
    """Trace each checkpoint type or target, and hold what is unused against its rules."""
    _refuse_several(ckpt, every, target)
    project = _project(rules)
    options = _how(project, **how)
    checking.refuse_unknown_codes(options)
    if show_settings:
        _print(settings.shown_settings(project, options))
        return CLEAN
    ready(format_)
    if statistics and format_ != "text":
        raise DdplintError("--statistics is for --format text", fix="leave one of them out")
    if output is not None:
        checking.refuse_missing_folder(output)
        inputs.disown(str(output))
    subjects = _meant(project, ckpt, every, target)
    with baseline.optional(project, Path.cwd(), rules, base) as old:
        results, unchecked = _results(subjects, options, old)
    report = Report(tuple(results), unchecked=tuple(unchecked))
    if results:
        stream = sys.stdout if output is None else None
        view = View(options.quiet, options.verbose, statistics)
        text = for_a_person(report, view, stream) if format_ == "text" else render(format_, report)
        if output is None:
            _print(text, color=is_terminal(sys.stdout))
        else:
            checking.replace_file(output, text)
            _answer().files = ((str(output), text),)
        _say_notices(checking.add_step_summary(format_, report), "", options.quiet)
    if unchecked:
        return NOT_CHECKED
    code = FINDINGS if report.fails and not exit_zero else CLEAN
    _answer().code = code
    return code


def _results(
    subjects: Sequence[Subject | DdplintError], options: Options, old: baseline.Checkout | None
) -> tuple[list[Result], list[Unchecked]]:
    """What is found about each subject, and those that could not be checked; what is said on the way goes to stderr."""
    results: list[Result] = []
    unchecked: list[Unchecked] = []
    for number, subject in enumerate(subjects, 1):
        name = subject.title if isinstance(subject, Subject) else ""
        title = name if len(subjects) > 1 else ""
        of_several = f" ({number} of {len(subjects)})" if title else ""
        try:
            with _watched(f"checking {name}{of_several}", options) as watched:
                result = checking.checked(subject, watched)
                if old is not None:
                    result = baseline.against(result, checking.only([subject]), watched, old)
        except Exception as error:
            _say_error(error, click.get_current_context().params["debug"], title)
            unchecked.append(Unchecked(title or "a checkpoint type", str(error)))
        else:
            _say_notices((*result.analysis.notices, *baseline.freed(result)), title, options.quiet)
            results.append(result)
    return results, unchecked


@_command("verify")
@_types()
@_target
@_rules
@_tracing
@click.option("--iterations", type=click.IntRange(min=1), metavar="N", help="Iterations of each setting (default: enough).")
@click.option("--format", "format_", type=click.Choice(verify.FORMATS), default="text", show_default=True)
@_output
def _verify(
    ckpt: tuple[str, ...],
    every: bool,
    target: str | None,
    rules: Path | None,
    iterations: int | None,
    format_: str,
    output: Path | None,
    **how: Any,
) -> int:
    """Run real DDP processes, and hold what they do against the rehearsed verdict.

    Two processes on this machine (--ranks), on CPU over gloo; or, started by torchrun, its own ranks, on their
    GPUs with nccl if there are any. --timeout is for the analysis and for each setting. Exits 0 if both sides
    agree, 1 if they differ, 2 if they could not be run.
    """
    _refuse_several(ckpt, every, target)
    project = _project(rules)
    options = _how(project, **how)
    if output is not None:
        checking.refuse_missing_folder(output)
    subjects = _meant(project, ckpt, every, target)
    results, failed = [], False
    with verify.started(options, verify.torchrun()) as ranks:
        if not ranks.leads:
            ranks.wait()
            return CLEAN
        for subject in subjects:
            try:
                if isinstance(subject, DdplintError):
                    raise subject
                say = _progress("verify", subject.title, options.quiet)
                results.append(verify.verified(subject, options, ranks, iterations=iterations, say=say))
            except DdplintError as error:
                _say_error(error, debug=click.get_current_context().params["debug"])
                failed = True
    if results:
        text = verify.render(format_, results)
        _print(text) if output is None else checking.replace_file(output, text)
    if failed:
        return NOT_CHECKED
    return FINDINGS if any(result.differing for result in results) else CLEAN


def _progress(command: str, title: str, quiet: bool) -> verify.Say:
    """A line on stderr for each setting: on a terminal begun when the setting is, elsewhere written when it is done."""
    live = sys.stderr.isatty()

    def say(setting: str, real: verify.Real | None) -> None:
        begun = f"{command} {title}: {setting} …"
        if quiet:
            return
        if real is None:
            if live:
                click.echo(begun, nl=False, err=True)
        else:
            click.echo(f"{'' if live else begun} {real.outcome} ({real.seconds:.1f} s)", err=True)

    return say


@_command("cost")
@_one_type
@_target
@_rules
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=cost.STEPS,
    show_default=True,
    metavar="N",
    help="Steps to time with the flag on, and as many with it off.",
)
@click.option("--format", "format_", type=click.Choice(cost.FORMATS), default="text", show_default=True)
@_output
@_device
@_paths
@_running
def _cost(
    ckpt: str | None,
    target: str | None,
    rules: Path | None,
    steps: int,
    format_: str,
    output: Path | None,
    **how: Any,
) -> int:
    """Measure what find_unused_parameters=True costs a model, in two processes on this machine's CPU, over gloo.

    A step with the flag on beside one with it off (for which the parameters that no path uses are frozen), the graph
    that DDP searches, its buckets and all-reduces, the bytes that are reduced for nothing.
    """
    project = _project(rules)
    options = _how(project, ranks=cost.RANKS, **how)
    if output is not None:
        checking.refuse_missing_folder(output)
    subject = _subject(project, ckpt, target)
    with verify.started(options, None) as ranks:
        found = cost.measured(subject, options, ranks, steps=steps, say=_progress("cost", subject.title, options.quiet))
    text = cost.render(format_, found)
    _print(text) if output is None else checking.replace_file(output, text)
    return CLEAN


@_command("why")
@click.argument("param")
@_one_type
@_target
@_rules
@_tracing
def _why(param: str, ckpt: str | None, target: str | None, rules: Path | None, **how: Any) -> int:
    """One parameter: its usage, cause and place, and the way its value goes.

    PARAM is its name, an alias, or an end of its name that no other shares.
    """
    project = _project(rules)
    options = _how(project, **how)
    with _watched("tracing", options) as watched:
        parameter, analysis = checking.explained(_subject(project, ckpt, target), param, watched)
    _say_notices(analysis.notices, "", options.quiet)
    _print(explain.explain(parameter, analysis.way))
    return CLEAN


@_command("decode")
@_one_type
@_target
@_rules
@_tracing
def _decode(ckpt: str | None, target: str | None, rules: Path | None, **how: Any) -> int:
    """Read a DDP error on stdin; print the parameters it lists by index, with cause and place."""
    project = _project(rules)
    options = _how(project, **how)
    subject = _subject(project, ckpt, target)
    text = sys.stdin.buffer.read().decode(errors="replace") if sys.stdin else ""
    decode.indices(text)  # a text without such an error is refused before a trace is waited for
    with _watched("tracing", options) as watched:
        analysis = checking.analysed(subject, watched)
    _say_notices(analysis.notices, "", options.quiet)
    _print("".join(f"{row}\n" for row in decode.decode(text, analysis)))
    return CLEAN


_file = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
_key = click.option("--key", metavar="KEY", help="Where in FILE the state dict is, where it has several.")


@_command("ckpt")
@_file
@_key
@_one_type
@_target
@_rules
@_tracing
@click.option("--format", "format_", type=click.Choice(stored.FORMATS), default="text", show_default=True)
@_output
def _ckpt(
    file: Path,
    key: str | None,
    ckpt: str | None,
    target: str | None,
    rules: Path | None,
    format_: str,
    output: Path | None,
    **how: Any,
) -> int:
    """What becomes of each tensor of a checkpoint FILE in the model: loaded, dropped, mismatched, fresh, dead.

    .pt, .pth, .bin, .safetensors, or the .index.json of a sharded one. No weight is loaded, and nothing in FILE is run.
    Without --ckpt the type is found by the rule files' [checkpoint] detect.
    """
    project = _project(rules)
    options = _how(project, **how)
    if output is not None:
        checking.refuse_missing_folder(output)
    checkpoint, subject, found = stored.opened(file, key, project, ckpt, target)
    with _watched("tracing", options) as watched:
        seen = stored.look(checkpoint, subject, found, watched)
    _say_notices(seen.analysis.notices, "", options.quiet)
    text = stored.render(format_, seen)
    _print(text) if output is None else checking.replace_file(output, text)
    return FINDINGS if seen.fails else CLEAN


@_command("strip")
@_file
@click.option(
    "-o", "--output", "output", type=click.Path(path_type=Path), metavar="OUT", required=True, help="The file to write."
)
@click.option("--force", is_flag=True, help="Write over OUT if it exists.")
@_key
@_one_type
@_rules
@_tracing
def _strip(file: Path, output: Path, force: bool, key: str | None, ckpt: str | None, rules: Path | None, **how: Any) -> int:
    """Write a checkpoint FILE without what the rule file documents as never used, optimizer state included.

    OUT is there once it is proven: all that is kept is the same, and the model returns the same on its example inputs with
    NaN in the place of what is gone. FILE is not touched.
    """
    project = _project(rules)
    options = _how(project, **how)
    checkpoint, subject, _ = stored.opened(file, key, project, ckpt, None)
    with _watched("stripping", options) as watched:
        done = strip.stripped(checkpoint, subject, output, force=force, options=watched)
    _print(done.summary())
    return CLEAN


@_command("init")
@click.option("--target", metavar="FILE_OR_MODULE[:FACTORY]", required=True, help="The model factory (default: build).")
@click.option("--ckpt", metavar="NAME", help="Name of the checkpoint type (default: the target's).")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The file to write (default: rules/NAME.toml).",
)
@_rules
@_tracing
def _init(target: str, ckpt: str | None, output: Path | None, rules: Path | None, **how: Any) -> int:
    """Write a commented starter rule file for a target, from what the trace finds."""
    project = _project(rules)
    options = _how(project, **how)
    with _watched("tracing", options) as watched:
        path, analysis = checking.started(project, target, ckpt, output, watched)
    _say_notices(analysis.notices, "", options.quiet)
    if not options.quiet:
        click.echo(f"note: wrote {path}", err=True)
    return CLEAN


_places = click.argument("places", metavar="[PATHS]...", nargs=-1, type=click.Path(path_type=Path))


@_command("wraps")
@_places
@_types("Hold the wraps against a checkpoint type's verdict.", "Against every checkpoint type of the project.")
@_target
@_rules
@_tracing
@click.option("--format", "format_", type=click.Choice(wraps.FORMATS), default="text", show_default=True)
def _wraps(
    places: tuple[Path, ...],
    ckpt: tuple[str, ...],
    every: bool,
    target: str | None,
    rules: Path | None,
    format_: str,
    **how: Any,
) -> int:
    """List the DDP wraps in PATHS (default: the working folder) and what each says of find_unused_parameters.

    Python, YAML and shell scripts are read, nothing is run. With a verdict (--ckpt, --all or --target) DDP301 and
    DDP302 are reported too, and exit with 1.
    """
    found = wraps.listed(places)
    verdicts: list[wraps.Judged] = []
    if ckpt or every or target is not None:
        project = _project(rules)
        options = _how(project, **how)
        with _watched("tracing", options) as watched:
            verdicts = [wraps.judged(found, s, watched) for s in _all_subjects(project, ckpt, every, target)]
    _say_found(found, verdicts, how["quiet"])
    _print(wraps.render(format_, found, verdicts))
    if found.failed:
        return NOT_CHECKED
    return FINDINGS if wraps.fails(verdicts) else CLEAN


@_command("fix")
@_places
@_types()
@_target
@_rules
@_tracing
@click.option("--diff", is_flag=True, help="Show the edits, and write nothing; exit with 1 if there are any.")
def _fix(
    places: tuple[Path, ...],
    ckpt: tuple[str, ...],
    every: bool,
    target: str | None,
    rules: Path | None,
    diff: bool,
    **how: Any,
) -> int:
    """Turn find_unused_parameters off in PATHS where it is on, a literal, and proven to be needless.

    Every chosen type has to run without it on every path. Without --ckpt, --all and --target these are the types that
    have [ddp] source, and without PATHS the files named there.
    """
    project = _project(rules)
    options = _how(project, **how)
    if ckpt or every or target is not None:
        subjects = _all_subjects(project, ckpt, every, target)
    else:
        subjects = wraps.with_source(checking.chosen(project, (), every=True), "ddplint fix")
    found = wraps.listed(places, subjects)
    with _watched("tracing", options) as watched:
        verdicts = [wraps.judged(found, subject, watched) for subject in subjects]
    fix = wraps.fixed(found, verdicts)
    _say_found(found, verdicts, options.quiet)
    _say_notices(wraps.reasons(fix), "", options.quiet)
    if diff:
        _print(wraps.diff(fix))
    else:
        wraps.write(fix)
        _print(wraps.said(fix))
    if found.failed:
        return NOT_CHECKED
    return FINDINGS if diff and fix.files else CLEAN


def _say_found(found: Found, verdicts: Iterable[wraps.Judged], quiet: bool) -> None:
    for notice in found.notices:
        click.echo(f"note: {notice}", err=True)
    for verdict in verdicts:
        _say_notices(verdict.notices, verdict.title, quiet)


@_command("update")
@_types()
@_rules
@_tracing
@click.option("--diff", is_flag=True, help="Show the change, and write nothing; exit with 1 if there is any.")
def _update(ckpt: tuple[str, ...], every: bool, rules: Path | None, diff: bool, **how: Any) -> int:
    """Bring rule files to what the trace finds: add what is new, take out what is stale, leave the rest as it is.

    New entries have the reason "TODO", which `check` reports (DDP106) until a person has written it.
    """
    project = _project(rules)
    subjects = _all_subjects(project, ckpt, every, None)
    with _watched("tracing", _how(project, **how)) as watched:
        updates = update.prepared(project, subjects, watched)
    if diff:
        _print("".join(one.diff() for one in updates))
    else:
        update.write(updates)
        _print("".join(f"{one.summary()}\n" for one in updates))
    return FINDINGS if diff and any(one.changes for one in updates) else CLEAN


@_command("list")
@_rules
@click.option("--format", "format_", type=click.Choice(listing.FORMATS), default="text", show_default=True)
def _list(rules: Path | None, format_: str) -> int:
    """List the checkpoint types: their targets, rule files and what is documented."""
    project = _project(rules)
    subjects = checking.all_of(project)
    _print(listing.render(format_, project, subjects, sys.stdout), color=is_terminal(sys.stdout))
    broken = [subject for subject in subjects if isinstance(subject, DdplintError)]
    for error in broken:
        _say_error(error, debug=False)
    return NOT_CHECKED if broken else CLEAN


@_command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def _completion(shell: str) -> int:
    """Print the completion script of a shell; for bash: eval "$(ddplint completion bash)"."""
    make = get_completion_class(shell)
    assert make is not None  # click has all three
    script = make(group, {}, "ddplint", "_DDPLINT_COMPLETE")
    _print(script.source_template % script.source_vars())
    return CLEAN


@group.group("cache", invoke_without_command=True)
@click.pass_context
def _cache(context: click.Context) -> None:
    """Where the answers of `check` are kept, how many, and how large they are. An answer is given again while nothing
    that it was made from has changed.
    """
    if context.invoked_subcommand is None:
        _print(cache.summary())


@_command("clear", _cache)
def _clear() -> int:
    """Delete all kept answers."""
    _print(cache.cleared())
    return CLEAN


@_command("rule")
@click.argument("code", required=False, shell_complete=_complete_codes)
def _rule(code: str | None) -> int:
    """The page of a rule: what it means, why it matters, examples, the fix. Without CODE: a list of all."""
    if code is not None:
        _print(registry.page(registry.get(code)))
        return CLEAN
    checks = registry.all_checks()
    width = max(len(check.NAME) for check in checks)
    for check in checks:
        summary = (check.__doc__ or "").strip().partition("\n")[0]
        _print(f"{check.CODE}  {check.NAME:{width}}  {check.SEVERITY:7}  {summary}\n")
    return CLEAN


@_command("schema")
def _schema() -> int:
    """The JSON Schema of rule files, for editors."""
    _print(json.dumps(schema.schema(), indent=2) + "\n")
    return CLEAN
