"""DDP wraps in Python source."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ddplint.callsites import known
from ddplint.callsites.known import FLAG, STATIC_GRAPH, Callee
from ddplint.callsites.model import Edit, Form, Setting, State, Wrap, combined, short
from ddplint.callsites.scopes import Module, Spot, read_module
from ddplint.callsites.source import Source, python_source
from ddplint.callsites.values import Leaf, expand, lookup, meaning
from ddplint.errors import DdplintError
from ddplint.fields import shown

MARKS = re.compile(
    rb"DistributedDataParallel|find_unused_parameters|DDPStrategy|DDPPlugin|DDPSpawn|TrainingArguments|[\"']ddp"
)
"""A file without any of these has no wrap, and is not parsed."""

_DEEPEST = 8  # names, classes and modules followed one after the other
_LIBRARIES = ("torch", "transformers", "accelerate", "trl", *known.LIGHTNING)
_SHARED = "its value is an expression or has other readers"


@dataclass(frozen=True, slots=True)
class Reading:
    """One module: its source and its scopes."""

    source: Source
    module: Module


@dataclass(frozen=True, slots=True)
class _Target:
    """What is called: an imported name (``origin``), or a class or a ``partial(...)`` of the module ``reading``."""

    reading: Reading
    origin: str = ""
    node: ast.ClassDef | ast.Call | None = None


@dataclass(frozen=True, slots=True)
class _Given:
    """The arguments of a call, and where it stands."""

    reading: Reading
    spot: Spot
    args: Sequence[ast.expr]
    keywords: Sequence[ast.keyword]


@dataclass(slots=True)
class Modules:
    """Modules that were read, by path: names are followed into those beside a file."""

    read: dict[Path, Reading | None] = field(default_factory=dict)

    def at(self, path: Path) -> Reading | None:
        """The module at ``path``; None where there is none, or none that can be read and has to do with DDP."""
        if path not in self.read:
            self.read[path] = None
            try:
                data = path.read_bytes()
                self.read[path] = reading(python_source(path, data)) if MARKS.search(data) else None
            except (OSError, DdplintError):
                return None
        return self.read[path]

    def defining(self, origin: str, path: Path) -> tuple[Reading, str] | None:
        """The module near ``path`` that holds the imported name ``origin``, and its name there."""
        module, _, name = origin.rpartition(".")
        dots = len(module) - len(module.lstrip("."))
        parts = module[dots:].split(".") if module[dots:] else []
        folders = [path.parents[dots - 1]] if 0 < dots <= len(path.parents) else list(path.parents)[:_DEEPEST]
        for folder in folders if parts or dots else ():
            stem = folder.joinpath(*parts)
            for file in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
                found = self.at(file) if file != path else None
                if found is not None:
                    return found, name
        return None


def reading(source: Source) -> Reading:
    """The module in ``source``. Raises DdplintError where it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes and comparisons in other people's code
            tree = ast.parse(source.text)
        return Reading(source, read_module(tree))
    except SyntaxError as error:
        where = f"{shown(source.path)}:{error.lineno}" if error.lineno else shown(source.path)
        raise DdplintError(f"not Python: {error.msg}", where=where) from None
    except (ValueError, RecursionError, MemoryError) as error:
        what = "nested too deep" if not isinstance(error, ValueError) else str(error)
        raise DdplintError(f"not Python: {what}", where=shown(source.path)) from None


def wraps(source: Source, modules: Modules) -> list[Wrap]:
    """The wraps in ``source``, in its order. Raises DdplintError where it is not Python."""
    finder = _Finder(reading(source), modules)
    return [wrap for node in ast.walk(finder.here.module.tree) for wrap in finder.of_node(node)]


class _Finder:
    """Looks at one module's nodes."""

    def __init__(self, here: Reading, modules: Modules) -> None:
        self.here = here
        self.modules = modules

    def of_node(self, node: ast.AST) -> Iterator[Wrap]:
        """The wraps that a node is."""
        match node:
            case ast.Call():
                yield from self._of_call(node)
            case ast.Dict():
                kind = next((v for k, v in zip(node.keys, node.values, strict=True) if _is(k, "type")), None)
                keywords = [ast.keyword(name, value) for name, value in _named_pairs(node)]
                yield from self._of_registry(node, kind, keywords)
            case ast.Assign(targets=[ast.Attribute(attr="ddp_find_unused_parameters") as target], value=value):
                given = _Given(self.here, self.here.module.spots[target], (), (ast.keyword(target.attr, value),))
                yield self._wrap(node, target, "training-arguments", given, known.TRAINING_ARGUMENTS)

    def _of_call(self, node: ast.Call) -> Iterator[Wrap]:
        spot = self.here.module.spots[node]
        given = _Given(self.here, spot, node.args, node.keywords)
        targets = self._targets(self.here, node.func, spot)
        if any(target.origin in ("functools.partial", "functools.partialmethod") for target in targets) and node.args:
            called = self._callee(self._targets(self.here, node.args[0], spot))
            if called is not None:
                bound = replace(given, args=node.args[1:])
                wrap = self._wrap(node, node.args[0], "partial", bound, called)
                yield wrap if _gives(bound, called) else replace(wrap, find_unused_parameters=_CALL_DECIDES)
            return
        partials = [target.node for target in targets if isinstance(target.node, ast.Call)]
        called = self._callee(targets)
        if called is not None:
            if not partials or _gives(given, called):
                yield self._wrap(node, node.func, "partial" if partials else called.form, given, called)
            return
        name = next((found for target in targets if (found := known.takes_strategy(target.origin))), "")
        if name:
            yield from self._of_trainer(node, given, name, targets)
        elif isinstance(node.func, ast.Name) and node.func.id in ("dict", "ConfigDict", "Config"):
            yield from self._of_registry(node, _keyword(node.keywords, "type"), node.keywords)
        elif _keyword(node.keywords, "ddp_find_unused_parameters") is not None and _ends(node.func, "Arguments", "Config"):
            yield self._wrap(node, node.func, "training-arguments", given, known.TRAINING_ARGUMENTS)

    def _of_registry(
        self, node: ast.Call | ast.Dict, kind: ast.expr | None, keywords: Sequence[ast.keyword]
    ) -> Iterator[Wrap]:
        """``dict(type="MMDistributedDataParallel", …)``, which a registry turns into a wrap."""
        if isinstance(kind, ast.Constant) and isinstance(kind.value, str) and kind.value.endswith("DistributedDataParallel"):
            given = _Given(self.here, self.here.module.spots[node], (), keywords)
            yield self._wrap(node, kind, "registry", given, Callee("registry"))

    def _of_trainer(self, node: ast.Call, given: _Given, name: str, targets: Sequence[_Target]) -> Iterator[Wrap]:
        """Lightning's strategies by name; one given as an object is a wrap of its own."""
        position = 1 if name == "Fabric" else None
        package = next(t.origin.partition(".")[0] for t in targets if known.takes_strategy(t.origin))
        for word in ("strategy", "plugins", "accelerator"):
            leaves, text = self._argument(given, word, position if word == "strategy" else None)
            setting = self._strategy(leaves, text, fabric=name == "Fabric", package=package)
            if setting is not None and (word == "strategy" or "find_unused" in setting.expression):
                yield self._placed(node, node.func, "strategy-name", setting, known.OFF)

    def _strategy(self, leaves: Sequence[Leaf], text: str, *, fabric: bool, package: str) -> Setting | None:
        states: list[State] = []
        found = False
        for leaf in leaves:
            name = leaf.node.value if isinstance(leaf.node, ast.Constant) else None
            setting = known.strategy(name, fabric=fabric, package=package) if isinstance(name, str) else None
            if setting is not None:
                states.append(setting.state)
                found = True
            elif name == "auto":
                states.append("off")  # what Lightning makes of several devices is "ddp"
            elif not isinstance(leaf.node, ast.Constant | ast.Call):
                states.append("unknown")
        if not found:
            return None
        state = combined(states)
        if state != "on":
            return Setting(state, text)
        (leaf, *others) = leaves
        edit = self._name_edit(leaf, fabric) if not others and leaf.direct else None
        return Setting("on", text, edit, "" if edit else _SHARED)

    def _name_edit(self, leaf: Leaf, fabric: bool) -> Edit | None:
        node = leaf.node
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(known.ON_SUFFIX)):
            return None
        start, end = self._span(node)
        literal = self.here.source.text[start:end]
        if literal[1:-1] != node.value:  # a prefix, three quotes, an escape, two literals side by side
            return None
        before = literal[1:-1]
        return Edit(start + 1, end - 1, before, known.strategy_off(before, fabric=fabric))

    # What is called

    def _targets(self, here: Reading, node: ast.expr, spot: Spot, depth: int = 0) -> list[_Target]:
        """Everything that a called expression can be, as far as it can be followed."""
        if depth > _DEEPEST:
            return []
        match node:
            case ast.Attribute(value=inner, attr=name):
                found = self._targets(here, inner, spot, depth + 1)
                return [_Target(t.reading, f"{t.origin}.{name}") for t in found if t.origin]
            case ast.IfExp(body=one, orelse=other):
                return [*self._targets(here, one, spot, depth + 1), *self._targets(here, other, spot, depth + 1)]
            case ast.BoolOp(values=values):
                return [target for value in values for target in self._targets(here, value, spot, depth + 1)]
            case ast.Call(func=ast.Name() | ast.Attribute()):
                found = self._targets(here, node.func, spot, depth + 1)
                return [_Target(here, node=node)] if any(t.origin == "functools.partial" for t in found) else []
            case ast.Name(id=name):
                return self._targets_of_name(here, name, spot, depth)
        return []

    def _targets_of_name(self, here: Reading, name: str, spot: Spot, depth: int) -> list[_Target]:
        bindings = here.module.bindings(name, spot)
        if bindings is None:
            stars = here.module.scope.stars
            from_star = [_Target(here, f"{module}.{name}") for module in stars if not module.startswith(".")]
            return [*from_star, _Target(here, name)] if stars else []
        targets: list[_Target] = []
        for binding in bindings:
            if binding.origin:
                targets.append(_Target(here, binding.origin))
            elif isinstance(binding.definition, ast.ClassDef):
                targets.append(_Target(here, node=binding.definition))
            elif binding.value is not None:
                targets += self._targets(here, binding.value, binding.spot, depth + 1)
        return targets

    def _callee(self, targets: Sequence[_Target], depth: int = 0) -> Callee | None:
        """The first of ``targets`` that wraps in DDP."""
        for target in targets:
            found = self._callee_of(target, depth)
            if found is not None:
                return found
        return None

    def _callee_of(self, target: _Target, depth: int) -> Callee | None:
        if depth > _DEEPEST:
            return None
        node, here = target.node, target.reading
        if isinstance(node, ast.ClassDef):
            return self._class_callee(here, node, depth + 1)
        if isinstance(node, ast.Call):
            return self._callee(self._targets(here, node.args[0], here.module.spots[node]), depth + 1) if node.args else None
        local = None
        if target.origin.partition(".")[0] not in _LIBRARIES:
            local = self.modules.defining(target.origin, here.source.path)
        if local is not None:
            there, name = local
            end = Spot(there.module.scope, 1 << 60, (), ())
            return self._callee(self._targets_of_name(there, name, end, depth + 1), depth + 1)
        return known.callee(target.origin)

    def _class_callee(self, here: Reading, node: ast.ClassDef, depth: int) -> Callee | None:
        """A class derived from one that wraps: what its own ``__init__``, or its fields, make of the flags."""
        spot = here.module.spots.get(node) or Spot(here.module.scope, 1 << 60, (), ())
        base = next(
            (
                found
                for expression in node.bases
                if (found := self._callee(self._targets(here, expression, _spot_of(here, expression, spot), depth), depth))
            ),
            None,
        )
        if base is None:
            return None
        form: Form = base.form if base.form == "training-arguments" else "subclass"
        init = next((m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None)
        if init is not None:
            return _through_init(replace(base, form=form), init)
        defaults = dict(base.defaults)
        for member in node.body:
            for flag, name in base.names.items():
                if isinstance(member, ast.AnnAssign | ast.Assign) and _assigns(member, name):
                    defaults[flag] = _field_default(member.value)
        return replace(base, form=form, defaults=defaults)

    # What the arguments say

    def _wrap(self, node: ast.AST, callee: ast.expr, form: Form, given: _Given, called: Callee) -> Wrap:
        return self._placed(
            node, callee, form, self._setting(given, called, FLAG), self._setting(given, called, STATIC_GRAPH)
        )

    def _placed(self, node: ast.AST, callee: ast.expr, form: Form, flag: Setting, static: Setting) -> Wrap:
        source = self.here.source
        assert isinstance(node, ast.expr | ast.stmt)
        line, column = source.place(self._span(node)[0])
        return Wrap(str(source.path), line, column, form, self._text(callee), flag, static, source.line(line))

    def _setting(self, given: _Given, called: Callee, flag: str) -> Setting:
        default, name = called.default(flag), called.names.get(flag)
        if name is None:
            return default
        leaves, text = self._argument(given, name, called.positions.get(flag))
        if called.form == "training-arguments" and flag == FLAG:  # None leaves it to the Trainer
            none = Leaf(state=default.state, direct=False)
            leaves = [none if _is(leaf.node, None) else leaf for leaf in leaves]
        if not leaves or all(leaf.absent for leaf in leaves):
            return default
        state = meaning(leaves, default.state)
        if state != "on" or flag != FLAG:
            return Setting(state, text)
        (leaf, *others) = leaves
        if others or not leaf.direct or not (isinstance(leaf.node, ast.Constant) and leaf.node.value is True):
            return Setting("on", text, None, _SHARED)
        start, end = self._span(leaf.node)
        return Setting("on", text, Edit(start, end, "True", "False"))

    def _argument(self, given: _Given, name: str, position: int | None) -> tuple[list[Leaf], str]:
        """Everything that an argument can be, and its source; nothing where it is not given."""
        module = given.reading.module
        value = _keyword(given.keywords, name)
        if value is None and position is not None:
            starred = next((a for a in given.args[: position + 1] if isinstance(a, ast.Starred)), None)
            if starred is not None:
                return [Leaf()], self._text(starred)
            value = given.args[position] if position < len(given.args) else None
        if value is not None:
            return expand(module, value, given.spot), self._text(value)
        found: list[Leaf] = []
        texts: list[str] = []
        for word in given.keywords:
            if word.arg is None:
                leaves = lookup(module, word.value, name, given.spot)
                if not all(leaf.absent for leaf in leaves):
                    found += leaves
                    texts.append(f"**{self._text(word.value)}")
        return found, ", ".join(texts)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        source = self.here.source
        end_line, end_column = node.end_lineno, node.end_col_offset
        assert end_line is not None  # ast.parse gives every node its end
        assert end_column is not None
        return source.offset(node.lineno, node.col_offset), source.offset(end_line, end_column)

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return short(self.here.source.text[start:end])


_CALL_DECIDES = Setting("unknown", "not given: the call of the partial decides")


def _spot_of(here: Reading, expression: ast.expr, default: Spot) -> Spot:
    name = next((node for node in ast.walk(expression) if isinstance(node, ast.Name)), None)
    return here.module.spots.get(name, default) if name is not None else default


def _through_init(base: Callee, init: ast.FunctionDef) -> Callee:
    """The class ``base`` with ``init`` before it, which may give the flags itself, pass them on, or keep them."""
    calls = [node for node in ast.walk(init) if isinstance(node, ast.Call) and _ends(node.func, "__init__")]
    names, positions, defaults = {}, {}, {}
    for flag in (FLAG, STATIC_GRAPH):
        name, position, default = _one_through_init(base, init, calls, flag)
        defaults[flag] = default
        if name:
            names[flag] = name
        if position is not None:
            positions[flag] = position
    return Callee(base.form, positions, names, defaults)


def _one_through_init(
    base: Callee, init: ast.FunctionDef, calls: Sequence[ast.Call], flag: str
) -> tuple[str, int | None, Setting]:
    """The flag's keyword in calls of the class ("" if it has none), its position, and its default."""
    arguments, keyword = init.args, base.names.get(flag, flag)
    own = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)][1:]
    if len(calls) != 1:
        return keyword, own.index(keyword) if keyword in own else None, known.SUBCLASS_DECIDES
    (call,) = calls
    value = _keyword(call.keywords, keyword)
    if value is None:
        spread = [word.value for word in call.keywords if word.arg is None]
        star = any(isinstance(argument, ast.Starred) for argument in call.args)
        if len(spread) == 1 and arguments.kwarg and _is_name(spread[0], arguments.kwarg.arg):
            position = base.positions.get(flag) if star and not own else None
            return keyword, position, base.default(flag)
        return ("", None, base.default(flag)) if not spread and not star else (keyword, None, known.SUBCLASS_DECIDES)
    if isinstance(value, ast.Constant) and isinstance(value.value, bool):
        return "", None, Setting("on" if value.value else "off", "set by its class", kept="its class sets it")
    if isinstance(value, ast.Name) and value.id in [*own, *(parameter.arg for parameter in arguments.kwonlyargs)]:
        position = own.index(value.id) if value.id in own else None
        return value.id, position, _parameter_default(arguments, value.id)
    return keyword, None, known.SUBCLASS_DECIDES


def _parameter_default(arguments: ast.arguments, name: str) -> Setting:
    given = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(reversed(given), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    value = next((default for parameter, default in pairs if parameter.arg == name), None)
    return _literal(value)


def _field_default(value: ast.expr | None) -> Setting:
    """A dataclass field's default."""
    if isinstance(value, ast.Call):
        value = _keyword(value.keywords, "default")
    return _literal(value)


def _literal(value: ast.expr | None) -> Setting:
    if isinstance(value, ast.Constant) and isinstance(value.value, bool):
        return Setting("on" if value.value else "off", "not given: its class's default", kept="its class sets it")
    return known.SUBCLASS_DECIDES


def _gives(given: _Given, called: Callee) -> bool:
    """Whether a call says anything of the flag."""
    name, position = called.names.get(FLAG), called.positions.get(FLAG)
    return any(word.arg in (None, name) for word in given.keywords) or (position is not None and len(given.args) > position)


def _keyword(keywords: Sequence[ast.keyword], name: str) -> ast.expr | None:
    return next((word.value for word in keywords if word.arg == name), None)


def _is(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value == value


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _named_pairs(node: ast.Dict) -> Iterator[tuple[str, ast.expr]]:
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value, value


def _ends(node: ast.expr, *ends: str) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.endswith(ends)


def _assigns(member: ast.AnnAssign | ast.Assign, name: str) -> bool:
    targets = member.targets if isinstance(member, ast.Assign) else [member.target]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)
