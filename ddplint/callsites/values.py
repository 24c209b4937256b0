"""What an expression can be where it stands, followed through names as far as the module's own source proves it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ddplint.callsites.model import State, combined
from ddplint.callsites.scopes import Binding, Module, Spot, reaching

_DEEPEST = 12  # names followed one after the other
_HARMLESS_METHODS = ("get", "items", "keys", "values", "copy")
_HARMLESS_CALLS = ("print", "len", "str", "repr", "dict", "sorted", "list", "bool", "deepcopy", "info", "debug", "update")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One thing that a value can be: an expression (``node``), a value that is no expression's own (``state``).

    With neither, it can't be followed. ``direct``: it stands in the call itself, or in a dictionary that only this
    call takes. ``absent``: the key is not in the dictionary.
    """

    node: ast.expr | None = None
    state: State | None = None
    direct: bool = True
    absent: bool = False


UNKNOWN = Leaf()
ABSENT = Leaf(absent=True)


def indirect(leaves: Iterable[Leaf]) -> list[Leaf]:
    """``leaves`` as of a value that is reached by a name or a condition."""
    return [replace(leaf, direct=False) for leaf in leaves]


def state(leaf: Leaf) -> State:
    """What a leaf means as a flag."""
    if leaf.state is not None:
        return leaf.state
    match leaf.node:
        case ast.Constant(value=bool() | int() | None as value):
            return "on" if value else "off"
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
            return "conditional"
    return "unknown"


def expand(module: Module, node: ast.expr, spot: Spot, depth: int = 0) -> list[Leaf]:
    """Everything that ``node`` can be at ``spot``."""
    if depth > _DEEPEST:
        return [UNKNOWN]
    match node:
        case ast.Name(id=name):
            return _named(module, name, spot, depth)
        case ast.IfExp(body=body, orelse=orelse):
            both = (*expand(module, body, spot, depth + 1), *expand(module, orelse, spot, depth + 1))
            return indirect(both)
        case ast.NamedExpr(value=value):
            return indirect(expand(module, value, spot, depth + 1))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return [_inverted(leaf) for leaf in expand(module, operand, spot, depth + 1)]
        case ast.Call(func=ast.Name(id="bool"), args=[value], keywords=[]) if module.owner("bool", spot) is None:
            return [_truth(leaf) for leaf in expand(module, value, spot, depth + 1)]
    return [Leaf(node)]


def _inverted(leaf: Leaf) -> Leaf:
    opposite: dict[State, State] = {"on": "off", "off": "on"}
    return Leaf(state=opposite.get(state(leaf), "conditional"), direct=False)


def _truth(leaf: Leaf) -> Leaf:
    return Leaf(state=state(leaf), direct=False)


def _named(module: Module, name: str, spot: Spot, depth: int) -> list[Leaf]:
    bindings = module.bindings(name, spot, every=True)
    if not bindings:
        return [UNKNOWN]
    leaves: list[Leaf] = []
    for binding in bindings:
        if binding.value is None:
            leaves.append(UNKNOWN)
        else:
            leaves += indirect(expand(module, binding.value, binding.spot, depth + 1))
    return leaves


def meaning(leaves: Sequence[Leaf], default: State) -> State:
    """The state of a flag whose value is one of ``leaves``; ``default`` holds where it is absent."""
    return combined([default if leaf.absent else state(leaf) for leaf in leaves]) if leaves else "unknown"


# Keys of dictionaries


def lookup(module: Module, mapping: ast.expr, key: str, spot: Spot, depth: int = 0) -> list[Leaf]:
    """What the dictionary ``mapping`` can hold under ``key`` at ``spot``."""
    if depth > _DEEPEST:
        return [UNKNOWN]
    match mapping:
        case ast.Dict(keys=keys, values=values):
            return _in_pairs(module, list(zip(keys, values, strict=True)), key, spot, depth)
        case ast.Call(func=ast.Name(id="dict"), args=args, keywords=keywords) if module.owner("dict", spot) is None:
            pairs: list[tuple[ast.expr | None, ast.expr]] = [(None, argument) for argument in args]
            pairs += [(ast.Constant(word.arg) if word.arg else None, word.value) for word in keywords]
            return _in_pairs(module, pairs, key, spot, depth)
        case ast.Call(func=ast.Attribute(value=inner, attr="copy"), args=[], keywords=[]):
            return indirect(lookup(module, inner, key, spot, depth + 1))
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return indirect(_in_pairs(module, [(None, left), (None, right)], key, spot, depth))
        case ast.IfExp(body=body, orelse=orelse):
            both = (*lookup(module, body, key, spot, depth + 1), *lookup(module, orelse, key, spot, depth + 1))
            return indirect(both)
        case ast.BoolOp(op=ast.Or(), values=[first, ast.Dict(keys=[])]):
            return indirect([*lookup(module, first, key, spot, depth + 1), ABSENT])
        case ast.Name(id=name):
            return _in_named(module, name, key, spot, depth)
    return [UNKNOWN]


def _in_pairs(module: Module, pairs: list[tuple[ast.expr | None, ast.expr]], key: str, spot: Spot, depth: int) -> list[Leaf]:
    """The last pair that has ``key`` wins; a pair without a key is another dictionary, unpacked."""
    maybe: list[Leaf] = []
    for name, value in reversed(pairs):
        if name is None:
            found = lookup(module, value, key, spot, depth + 1)
            maybe += [leaf for leaf in found if not leaf.absent]
            if not any(leaf.absent for leaf in found):
                return maybe
        elif not isinstance(name, ast.Constant):
            maybe.append(UNKNOWN)
        elif name.value == key:
            found = expand(module, value, spot, depth + 1)
            return [*maybe, *found] if maybe else found
    return [*maybe, ABSENT]


def _in_named(module: Module, name: str, key: str, spot: Spot, depth: int) -> list[Leaf]:
    """A dictionary's variable: each assignment and each later change of ``key`` counts as a binding of its own."""
    found = module.owner(name, spot)
    if found is None:
        return [UNKNOWN]
    scope, here, later = found
    events: list[tuple[Binding, list[Leaf]]] = []
    for binding in scope.bindings[name]:
        leaves = [UNKNOWN] if binding.value is None else lookup(module, binding.value, key, binding.spot, depth + 1)
        events.append((binding, leaves))
    uses = [use for use in module.uses[name] if (own := module.owner(name, module.spots[use])) and own[0] is scope]
    for use in uses:
        events += [(Binding(module.spots[use]), leaves) for leaves in _changes(module, use, key, depth)]
    reached = [binding for binding, _ in events] if later else reaching([binding for binding, _ in _ordered(events)], here)
    leaves = [leaf for binding, found_leaves in events if binding in reached for leaf in found_leaves]
    # What the module's scope holds, another module can import.
    mine = scope.kind == "function" and not later and _taken_once(module, uses)
    return (leaves if mine else indirect(leaves)) or [UNKNOWN]


def _taken_once(module: Module, uses: list[ast.Name]) -> bool:
    """Whether a dictionary is read by one call alone, that unpacks it; it may be assigned to before."""
    readers = [module.parents.get(use) for use in uses if not isinstance(use.ctx, ast.Store)]
    calls = [reader for reader in readers if not (isinstance(reader, ast.Subscript) and isinstance(reader.ctx, ast.Store))]
    return len(calls) == 1 and isinstance(calls[0], ast.keyword) and calls[0].arg is None


def _ordered(events: list[tuple[Binding, list[Leaf]]]) -> list[tuple[Binding, list[Leaf]]]:
    return sorted(events, key=lambda event: event[0].spot.order)


def _changes(module: Module, use: ast.Name, key: str, depth: int) -> Iterator[list[Leaf]]:
    """What the mention ``use`` of a dictionary's name does to its ``key``: nothing, or leaves that it then has."""
    parent = module.parents.get(use)
    if isinstance(use.ctx, ast.Store) or (isinstance(parent, ast.keyword) and parent.arg is None):
        return  # an assignment is a binding; unpacking reads
    grand = module.parents.get(parent) if parent is not None else None
    match parent, grand:
        case ast.Subscript(value=inner, ctx=ast.Load()), _ if inner is use:
            return
        case ast.Subscript(value=inner, slice=ast.Constant(value=word)), ast.Assign() if inner is use:
            if word == key and isinstance(grand, ast.Assign):
                yield expand(module, grand.value, module.spots[use], depth + 1)
            return
        case ast.Subscript(value=inner, slice=ast.Constant(value=word)), _ if inner is use and word != key:
            return
        case ast.Attribute(attr=method), ast.Call(func=function) if function is parent and method in _HARMLESS_METHODS:
            return
        case ast.Attribute(attr="update"), ast.Call(args=args, keywords=keywords, func=function) if function is parent:
            pairs: list[tuple[ast.expr | None, ast.expr]] = [(None, argument) for argument in args]
            pairs += [(ast.Constant(word.arg) if word.arg else None, word.value) for word in keywords]
            found = _in_pairs(module, pairs, key, module.spots[use], depth)
            if found != [ABSENT]:
                yield [UNKNOWN if leaf.absent else leaf for leaf in found]
            return
        case (
            ast.Attribute(attr="setdefault" | "pop"),
            ast.Call(args=[ast.Constant(value=word), *_], func=function),
        ) if function is parent and word != key:
            return
        case ast.Call(func=ast.Name(id=function_name) | ast.Attribute(attr=function_name)), _ if (
            function_name in _HARMLESS_CALLS
        ):
            return
        case ast.Compare() | ast.FormattedValue() | ast.If() | ast.BoolOp() | ast.IfExp(), _:
            return
        case ast.Dict(), _:  # {**kw}: read (as a value under a key it would be kept, and could be changed there)
            if isinstance(parent, ast.Dict) and any(
                word is None and value is use for word, value in zip(parent.keys, parent.values, strict=True)
            ):
                return
        case (ast.Return(), _):
            return
    yield [UNKNOWN]
