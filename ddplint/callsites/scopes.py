"""Which values a name can have where it is used: scopes and bindings of one Python module, from its syntax alone.

What is not an import, an assignment, a class or a function has no value here: a parameter, a loop variable, the
target of ``with``. Nothing that a function changes through ``global`` is taken for sure.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Block = tuple[int, str]  # a compound statement (its id) and which of its parts
Kind = Literal["module", "class", "function", "immediate"]  # immediate: a comprehension, which runs where it stands


@dataclass(eq=False)
class Scope:
    """A scope; ``at`` is the place in the parent where it stands. Filled while the module is read."""

    kind: Kind
    parent: Scope | None
    at: Spot | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    elsewhere: dict[str, Scope] = field(default_factory=dict)  # names declared global or nonlocal
    stars: list[str] = field(default_factory=list)  # modules of ``from … import *``


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a scope: its number in source order, the compound statements around it, the loops among them."""

    scope: Scope
    order: int
    blocks: tuple[Block, ...]
    loops: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Binding:
    """A name gets a value: an import's ``origin``, an expression, or a ``definition``; with none of them, any."""

    spot: Spot
    origin: str = ""
    value: ast.expr | None = None
    definition: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | None = None


@dataclass(frozen=True, slots=True)
class Module:
    """One module that was read: ``spots`` has the place of every name and call, ``parents`` what each node is part of."""

    tree: ast.Module
    scope: Scope
    spots: dict[ast.AST, Spot]
    parents: dict[ast.AST, ast.AST]
    uses: dict[str, list[ast.Name]]  # every mention of a name, in source order

    def bindings(self, name: str, spot: Spot, *, every: bool = False) -> list[Binding] | None:
        """What ``name`` can be bound to at ``spot``; None if nothing binds it.

        A function runs later than the scopes around it: of a name bound there the last unconditional binding and what
        follows it count, or with ``every`` all of them.
        """
        found = self.owner(name, spot)
        if found is None:
            return None
        scope, here, later = found
        bindings = scope.bindings[name]
        if not later:
            return reaching(bindings, here)
        if every:
            return bindings
        last = max((n for n, b in enumerate(bindings) if not b.spot.blocks and b.spot.scope is scope), default=0)
        return bindings[last:]

    def owner(self, name: str, spot: Spot) -> tuple[Scope, Spot, bool] | None:
        """The scope that ``name`` belongs to, the place in it that counts, and whether it is used later than there."""
        scope: Scope | None = spot.scope
        here, later, inner = spot, False, True
        while scope is not None:
            if name in scope.elsewhere:
                home = scope.elsewhere[name]
                return (home, spot, True) if name in home.bindings else None
            if name in scope.bindings and (inner or scope.kind != "class"):
                return scope, here, later
            later = later or scope.kind == "function"
            inner = inner and scope.kind == "immediate"
            here = scope.at or here
            scope = scope.parent
        return None


def reaching(bindings: list[Binding], here: Spot) -> list[Binding]:
    """Those of ``bindings``, all in one scope, that can hold at ``here`` in the same scope."""
    before = [b for b in bindings if b.spot.order < here.order]
    sure = [b for b in before if b.spot.scope is here.scope and here.blocks[: len(b.spot.blocks)] == b.spot.blocks]
    last = sure[-1].spot.order if sure else 0
    found = []
    for binding in bindings:
        spot = binding.spot
        if spot.scope is not here.scope:  # a function that changes it, at any time
            found.append(binding)
        elif spot.order < here.order:
            if spot.order >= last and not _exclusive(spot, here):
                found.append(binding)
        elif set(spot.loops) & set(here.loops):  # the loop's next round
            found.append(binding)
    return found


def _exclusive(one: Spot, other: Spot) -> bool:
    """Whether two places are in branches of which only one runs."""
    if set(one.loops) & set(other.loops) or one.scope is not other.scope:
        return False
    for (node, part), (another, part2) in zip(one.blocks, other.blocks, strict=False):
        if node != another:
            return False
        if part != part2:
            return part.startswith("branch") and part2.startswith("branch")
    return False


def read_module(tree: ast.Module) -> Module:
    """The scopes of ``tree``."""
    return _Reader().read(tree)


class _Reader(ast.NodeVisitor):
    """Visits in the order of execution, as far as source has one."""

    def __init__(self) -> None:
        self.scope = Scope("module", None, None)
        self.blocks: tuple[Block, ...] = ()
        self.loops: tuple[int, ...] = ()
        self.order = 0
        self.spots: dict[ast.AST, Spot] = {}
        self.parents: dict[ast.AST, ast.AST] = {}
        self.uses: dict[str, list[ast.Name]] = {}

    def read(self, tree: ast.Module) -> Module:
        scope = self.scope
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
        self.visit(tree)
        return Module(tree, scope, self.spots, self.parents, self.uses)

    def spot(self) -> Spot:
        self.order += 1
        return Spot(self.scope, self.order, self.blocks, self.loops)

    def bind(
        self,
        name: str,
        *,
        origin: str = "",
        value: ast.expr | None = None,
        definition: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | None = None,
    ) -> None:
        home = self.scope.elsewhere.get(name, self.scope)
        home.bindings.setdefault(name, []).append(Binding(self.spot(), origin, value, definition))

    def bind_target(self, target: ast.expr, value: ast.expr | None) -> None:
        match target:
            case ast.Name(id=name):
                self.uses.setdefault(name, []).append(target)
                self.spots[target] = self.spot()
                self.bind(name, value=value)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                values: list[ast.expr | None] = [None] * len(parts)
                if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(parts):
                    starred = any(isinstance(part, ast.Starred) for part in (*parts, *value.elts))
                    values = values if starred else list(value.elts)
                for part, one in zip(parts, values, strict=True):
                    self.bind_target(part, one)
            case ast.Starred(value=inner):
                self.bind_target(inner, None)
            case _:
                self.visit(target)

    def visit_all(self, nodes: list[ast.stmt] | list[ast.expr] | list[ast.keyword]) -> None:
        for node in nodes:
            self.visit(node)

    def inside(self, node: ast.AST, part: str, body: list[ast.stmt], *, loop: bool = False) -> None:
        before = self.blocks, self.loops
        self.blocks = (*self.blocks, (id(node), part))
        self.loops = (*self.loops, id(node)) if loop else self.loops
        self.visit_all(body)
        self.blocks, self.loops = before

    def enter(self, kind: Kind) -> tuple[Scope, tuple[Block, ...], tuple[int, ...]]:
        before = self.scope, self.blocks, self.loops
        self.scope = Scope(kind, self.scope, self.spot())
        self.blocks, self.loops = (), ()
        return before

    def leave(self, before: tuple[Scope, tuple[Block, ...], tuple[int, ...]]) -> None:
        self.scope, self.blocks, self.loops = before

    # Names and calls

    def visit_Name(self, node: ast.Name) -> None:
        self.uses.setdefault(node.id, []).append(node)
        self.spots[node] = self.spot()
        if not isinstance(node.ctx, ast.Load):
            self.bind(node.id)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        self.spots[node] = self.spot()

    def visit_Dict(self, node: ast.Dict) -> None:
        self.generic_visit(node)
        self.spots[node] = self.spot()

    # Bindings

    def visit_Import(self, node: ast.Import) -> None:
        for name in node.names:
            top = name.name.partition(".")[0]
            self.bind(name.asname or top, origin=name.name if name.asname else top)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        for name in node.names:
            if name.name == "*":
                self.scope.stars.append(module)
            else:
                dot = "" if module.endswith(".") else "."
                self.bind(name.asname or name.name, origin=f"{module}{dot}{name.name}")

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        # Two names of one dictionary change it for each other.
        plain = len(node.targets) == 1 or isinstance(node.value, ast.Constant | ast.Name | ast.Attribute)
        for target in node.targets:
            self.spots[target] = self.spot()
            self.bind_target(target, node.value if plain else None)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.annotation)
        if node.value is not None:
            self.visit(node.value)
            self.spots[node.target] = self.spot()
            self.bind_target(node.target, node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        self.bind_target(node.target, None)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        scope = inner = self.scope
        while scope.kind == "immediate" and scope.parent is not None:
            scope = scope.parent
        self.scope = scope
        self.bind_target(node.target, node.value if scope is inner else None)
        self.scope = inner

    def visit_Global(self, node: ast.Global) -> None:
        top = self.scope
        while top.parent is not None:
            top = top.parent
        self.scope.elsewhere.update(dict.fromkeys(node.names, top))

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        for name in node.names:
            scope = self.scope.parent
            while scope is not None and not (scope.kind == "function" and name in scope.bindings):
                scope = scope.parent
            if scope is not None:
                self.scope.elsewhere[name] = scope

    # Compound statements

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self.inside(node, "branch", node.body)
        self.inside(node, "branch else", node.orelse)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        before = self.blocks, self.loops
        self.blocks, self.loops = (*self.blocks, (id(node), "body")), (*self.loops, id(node))
        self.bind_target(node.target, None)
        self.blocks, self.loops = before
        self.inside(node, "body", node.body, loop=True)
        self.inside(node, "else", node.orelse)

    visit_AsyncFor = visit_For

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self.inside(node, "body", node.body, loop=True)
        self.inside(node, "else", node.orelse)

    def visit_Try(self, node: ast.Try | ast.TryStar) -> None:
        self.inside(node, "body", node.body)
        for number, handler in enumerate(node.handlers):
            before = self.blocks
            self.blocks = (*self.blocks, (id(node), f"branch {number}"))
            if handler.type is not None:
                self.visit(handler.type)
            if handler.name is not None:
                self.bind(handler.name)
            self.visit_all(handler.body)
            self.blocks = before
        self.inside(node, "branch else", node.orelse)
        self.visit_all(node.finalbody)

    visit_TryStar = visit_Try

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self.bind_target(item.optional_vars, None)
        self.visit_all(node.body)

    visit_AsyncWith = visit_With

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        for number, case in enumerate(node.cases):
            before = self.blocks
            self.blocks = (*self.blocks, (id(node), f"branch {number}"))
            for pattern in ast.walk(case.pattern):
                name = pattern.rest if isinstance(pattern, ast.MatchMapping) else getattr(pattern, "name", None)
                if name is not None:
                    self.bind(name)
            if case.guard is not None:
                self.visit(case.guard)
            self.visit_all(case.body)
            self.blocks = before

    # Scopes

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.visit_all(node.decorator_list)
        self._defaults(node.args)
        self.bind(node.name, definition=node)
        before = self.enter("function")
        self._parameters(node.args)
        self.visit_all(node.body)
        self.leave(before)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._defaults(node.args)
        before = self.enter("function")
        self._parameters(node.args)
        self.visit(node.body)
        self.leave(before)

    def _defaults(self, arguments: ast.arguments) -> None:
        self.visit_all([*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)])

    def _parameters(self, arguments: ast.arguments) -> None:
        for parameter in parameters(arguments):
            self.bind(parameter.arg)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.visit_all(node.decorator_list)
        self.visit_all(node.bases)
        self.visit_all(node.keywords)
        before = self.enter("class")
        self.visit_all(node.body)
        self.leave(before)
        self.bind(node.name, definition=node)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        before = self.enter("immediate")
        for generator in node.generators:
            self.visit(generator.iter)
            self.bind_target(generator.target, None)
            self.visit_all(generator.ifs)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.visit(part)
        self.leave(before)

    visit_SetComp = visit_ListComp
    visit_GeneratorExp = visit_ListComp
    visit_DictComp = visit_ListComp


def parameters(arguments: ast.arguments) -> Iterator[ast.arg]:
    """Every parameter of a function."""
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (star for star in (arguments.vararg, arguments.kwarg) if star is not None)
