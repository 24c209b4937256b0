"""A commented starter rule file for a target, from what the trace found, and the writing of a new file."""

from __future__ import annotations

import ast
import contextlib
import errno
import os
import secrets
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from ddplint.analysis import Analysis, Parameter
from ddplint.checks.base import by_place
from ddplint.checks.wording import count, short, subject
from ddplint.errors import DdplintError
from ddplint.fields import shown, toml
from ddplint.globs import exact_globs
from ddplint.rules import TargetSpec, TensorSpec

_WIDTH = 100

_INTRODUCTION = (
    "Every [[unused]] entry is a group of parameters that one place in the code explains. Read it, put the "
    "reason in your own words, and choose the action: allow (they stay as they are), freeze (the model has "
    "them with requires_grad=False) or strip (the model does not have them)."
)

_REASONS = {
    "uncalled": "nothing in forward or in the loss calls or reads {who}",
    "discarded": "the output of {who} is dropped before the loss",
    "severed": "the loss uses the value of {who}, but no gradient flows back{text}",
    "output-only": "the way from {who} ends in a part of forward's output that the loss leaves out",
    "conditional": "only some paths use {who}{text}",
    "": "no gradient of the loss reaches {who}",
}


def starter(analysis: Analysis, spec: TargetSpec, name: str) -> str:
    """The text of a rule file for the checkpoint type ``name``.

    It has the target as ``spec`` describes it, and an entry for each group of unused parameters in
    ``analysis`` that covers these and no other parameter of the model. Raises DdplintError for a target that
    TOML can't say.
    """
    lines = [
        *_comment(f"Written by `ddplint init` from a trace of {analysis.target} ({_traced(analysis)})."),
        *_comment(_INTRODUCTION),
        *(line for notice in analysis.notices for line in _comment(notice)),
        "",
        "[checkpoint]",
        f"name = {toml(name)}",
        '# description = "what this checkpoint type is, in a few words"',
        '# detect = ["head.**"]  # globs over the keys by which a checkpoint file of this type is known',
        "",
        "[target]",
        *(f"{key} = {toml(value)}" for key, value in _target(spec)),
        "",
        "[ddp]",
        "# find_unused_parameters = true  # as your training script wraps the model",
    ]
    for group in groups(analysis):
        lines += ["", *entry_of(group, analysis)]
    return "\n".join(lines) + "\n"


def _traced(analysis: Analysis) -> str:
    trace = analysis.trace
    return f"torch {analysis.torch_version}, {trace.device}, {count(trace.paths, 'path')}"


def groups(analysis: Analysis) -> Iterator[Sequence[Parameter]]:
    """The unused parameters by place, those never used apart from those used sometimes."""
    for group in by_place(analysis.unused()):
        for usage in ("never", "sometimes"):
            if alike := [p for p in group if p.usage == usage]:
                yield alike


def entry_of(group: Sequence[Parameter], analysis: Analysis, *, reason: str | None = None) -> Iterator[str]:
    """The lines of an ``[[unused]]`` entry for ``group``; by default the reason is made of the cause."""
    inside = {p.name for p in group}
    others = (n for p in analysis.parameters if p.name not in inside for n in (p.name, *p.aliases))
    first = group[0]
    place = f", {shown(first.location.file)}:{first.location.line}" if first.location else ""
    yield from _comment(f"{subject(group, analysis)}: {first.cause or 'unused'}{place}")
    for why in [*dict.fromkeys(p.why for p in group if p.why)][:2]:
        yield from _comment(why)
    yield "[[unused]]"
    yield from _params(exact_globs([p.name for p in group], others))
    yield f"reason = {toml(reason or _reason(first, short(p.subtree or p.name for p in group)))}"
    yield 'action = "allow"'
    if first.usage == "sometimes":
        yield 'when = "sometimes"'


def _reason(parameter: Parameter, who: str) -> str:
    """A sentence that stays true when lines move: the code is quoted, its line is in the comment."""
    code = parameter.location.text if parameter.location else ""
    reason = _REASONS[parameter.cause or ""].format(who=who, text=f": `{code}`" if code else "")
    elsewhere = parameter.usage == "sometimes" and parameter.cause != "conditional"
    return f"on some paths {reason}" if elsewhere else reason


def _params(globs: Sequence[str]) -> Iterator[str]:
    line = f"params = {toml(globs)}"
    if len(line) <= _WIDTH:
        yield line
        return
    yield "params = ["
    yield from (f"    {toml(glob)}," for glob in globs)
    yield "]"


def _comment(text: str) -> Iterable[str]:
    printable = "".join(sign if sign.isprintable() else " " for sign in text)
    return textwrap.wrap(
        printable,
        _WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _target(spec: TargetSpec) -> Iterator[tuple[str, Any]]:
    """The keys of [target]. What ``--target`` took from the factory's own module, a rule file has to name."""
    module, colon, _ = spec.factory.rpartition(":")
    module = module if colon else spec.factory
    own = {}
    if spec.from_module:
        defined = _defined(module, spec.base)
        own = {part: f"{module}:{part}" for part in ("inputs", "variants", "loss", "step") if part in defined}
    yield "factory", spec.factory if colon else f"{spec.factory}:build"
    if spec.kwargs:
        yield "kwargs", spec.kwargs
    step = spec.step or own.get("step")
    if step is not None:
        yield "step", step
        return
    for key in ("inputs", "variants", "loss"):
        value = getattr(spec, key)
        if value is None:
            value = own.get(key)
        if value is not None:
            yield key, _plain(value)


def _plain(inputs: Any) -> Any:
    """Example inputs with their tensor specs as tables that say no more than they have to."""
    match inputs:
        case TensorSpec():
            table = inputs.to_json()
            plain = {"dtype": "float32", "low": 0, "high": 2}
            return {key: value for key, value in table.items() if value != plain.get(key)}
        case tuple():
            return [_plain(value) for value in inputs]
        case Mapping():
            return {key: _plain(value) for key, value in inputs.items()}
        case _:
            return inputs


def _defined(module: str, base: str) -> frozenset[str]:
    """The names that the source of ``module`` (dotted, or a path) defines or imports; nothing is run."""
    source = _source(module, base)
    try:
        tree = ast.parse(source.read_bytes()) if source is not None else None
    except (OSError, SyntaxError, ValueError):
        tree = None
    return frozenset(_bound(tree.body)) if tree is not None else frozenset()


def _source(module: str, base: str) -> Path | None:
    if module.endswith(".py"):
        return Path(base) / module
    folders: Iterable[str] | None = [base, *sys.path]
    origin = None
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), list(folders or ()))
        if spec is None:
            return None
        folders, origin = spec.submodule_search_locations, spec.origin
    return Path(origin) if origin and origin.endswith(".py") else None


def _bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in names)
            case ast.Assign(targets=targets):
                nodes = (node for target in targets for node in ast.walk(target))
                yield from (node.id for node in nodes if isinstance(node, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                yield name
            case ast.If() | ast.Try() | ast.With():
                for part in ("body", "orelse", "finalbody"):
                    yield from _bound(getattr(statement, part, ()))
                for handler in getattr(statement, "handlers", ()):
                    yield from _bound(handler.body)


def write_new(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, whole or not at all, and never over something that is there.

    Raises DdplintError where ``path`` exists, its folder does not, or it can't be written.
    """
    where = shown(path)
    if not path.parent.is_dir():
        raise DdplintError("no such folder", where=shown(path.parent), fix=f"make it, then write {where}")
    draft = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        draft.write_text(text, encoding="utf-8", newline="\n")
        _publish(draft, path)
    except FileExistsError:
        raise DdplintError("exists already", where=where, fix="move it away, or choose another name") from None
    except OSError as error:
        raise DdplintError(f"can't be written: {error.strerror}", where=where) from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def _publish(draft: Path, path: Path) -> None:
    """Give ``draft`` its name. A link fails where the name is taken; a rename would not."""
    try:
        os.link(draft, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        with path.open("xb") as file:  # a file system without links: not at once, but never over another file
            file.write(draft.read_bytes())
