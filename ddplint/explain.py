"""One parameter in words (``ddplint why``): which is meant, what becomes of it, the way of its value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddplint.analysis import Location, Parameter, Step
from ddplint.errors import DdplintError
from ddplint.fields import did_you_mean, quoted, shown

_LISTED = 3


def find(parameters: Sequence[Parameter], name: str) -> Parameter:
    """The parameter with this name or alias, else the only one whose name ends in ``name`` after a dot.

    Raises DdplintError where there is none, with a near miss, and where there are several.
    """
    for parameter in parameters:
        if name in (parameter.name, *parameter.aliases):
            return parameter
    names = {full: p for p in parameters for full in (p.name, *p.aliases)}
    found = list(dict.fromkeys(p for full, p in names.items() if full.endswith(f".{name}")))
    if len(found) == 1:
        return found[0]
    if found:
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        listed = ", ".join(p.name for p in found[:_LISTED])
        raise DdplintError(f"{len(found)} parameters end in {quoted(name)}: {listed}{more}", fix="say more of the name")
    raise DdplintError(
        f"no parameter {quoted(name)}{did_you_mean(name, names)}",
        fix=f"the model has {len(parameters)}, and the report's format json lists those that are unused",
    )


def explain(parameter: Parameter, way: Sequence[Step]) -> str:
    """What becomes of ``parameter``, and the ``way`` of its value, in lines."""
    return "\n".join((*_verdict(parameter), *_way(parameter, way))) + "\n"


def _verdict(parameter: Parameter) -> Iterator[str]:
    usage = f"{parameter.usage} used" if parameter.usage else "frozen, so nothing was asked about it"
    if parameter.usage and not parameter.trainable:
        usage += ", frozen, traced as if it were trainable"
    if parameter.usage in ("sometimes", "never") and parameter.evidence == "possible":
        usage += ", possible but not observed"
    yield f"{parameter.name}: {usage}" + (f"; {parameter.cause}" if parameter.cause else "")
    if parameter.aliases:
        yield f"  the same tensor as {', '.join(parameter.aliases)}"
    if parameter.location:
        yield f"  {_place(parameter.location)}"
        if parameter.location.text:
            yield f"    > {parameter.location.text}"
    if parameter.why:
        yield f"  {parameter.why}"


def _way(parameter: Parameter, way: Sequence[Step]) -> Iterator[str]:
    yield ""
    if not way:
        yield "no operation takes it"
        return
    yield "the way of its value, with the module that each operation runs in:"
    widths = [max(len(step.operation) for step in way), max(len(_module(step)) for step in way)]
    ended = False
    for step in way:
        if not step.carries and not ended:
            ended = True
            yield "  -- no gradient comes back from here on --"
        place = _place(step.location) if step.location else ""
        yield f"  {step.operation:{widths[0]}}  {_module(step):{widths[1]}}  {place}".rstrip()
    if parameter.cause == "output-only":
        yield "  -- forward's output: the loss does not use this part --"
    elif parameter.cause in ("uncalled", "discarded"):
        yield "  -- its value goes no further --"
    else:
        yield "  -- the loss --"


def _module(step: Step) -> str:
    return step.module or "(model)"


def _place(location: Location) -> str:
    function = f" in {location.function}" if location.function else ""
    return f"{shown(location.file)}:{location.line}{function}"
