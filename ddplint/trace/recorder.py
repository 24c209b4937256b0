"""One run of forward and loss, recorded call by call into a ``torch.fx.Graph``.

``Recorder`` is a ``TorchFunctionMode``: it sees every torch call above autograd, which builds its own graph
underneath in the same run. Each node's ``meta`` has ``nn_module_stack`` and ``stack_trace`` as fx has them, and
``"op"``, an ``Op``: which nodes its tensors came from and through which of them gradient can flow back.

The rule is one: gradient flows from an operation to an input if the input requires grad at the moment it is consumed
and grad mode is on. ``no_grad``, ``detach``, ``.data``, ``argmax`` and integer casts then cut by themselves, for what
they return does not require grad when it is consumed in turn.

What no mode sees (TorchScript, C++ extensions, functorch, results of ``torch.autograd.grad``) shows as a tensor with
a ``grad_fn`` that no recorded call made: its inputs are then read off autograd's graph. Python functions of
``torch.nn.functional`` and ``torch.Tensor`` are recorded from inside: they ask ``has_torch_function`` whether to hand
over whole (for instance torch/nn/functional.py, ``gumbel_softmax``), and while recording they are told no.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.fx
from torch import nn
from torch.fx.node import _get_qualified_name

from ddplint.trace.devices import TraceDevice, Twins, version_of
from ddplint.trace.patching import patched
from ddplint.trace.sites import Site, call_site, decorated_site, read_site
from ddplint.trace.values import NUMBERS, READS, SHAPES, AnsweringMode, Answers, NoValue
from ddplint.trace.versions import function_apply

Tensor = torch.Tensor
ModuleStack = dict[str, tuple[str, type[nn.Module]]]


@dataclass(slots=True)
class Op:
    """What a recorded call was made of.

    ``inputs`` are (node, live): the node that last wrote an input tensor, and whether gradient can flow back to it.
    ``carries``: whether anything it returned or wrote requires grad.
    """

    name: str
    inputs: list[tuple[torch.fx.Node, bool]]
    carries: bool
    site: Site | None
    grad_off: Site | None = None  # where grad mode was switched off, if it was off
    module: str = ""
    index: int = 0
    opaque: bool = False  # not seen by the mode: inputs come from autograd's graph
    custom: bool = False  # a torch.autograd.Function of Python's
    writes: bool = False  # it wrote into an input


@dataclass(frozen=True, slots=True)
class BackwardCall:
    """A backward that ran: from which nodes, and into which leaves if it named some (``backward(inputs=…)``)."""

    roots: tuple[torch.fx.Node, ...]
    functions: tuple[Any, ...]  # the roots' grad_fn
    inside: torch.fx.Node | None  # the custom Function in whose backward it ran
    leaves: frozenset[int] | None = None


@dataclass(slots=True)
class Recording:
    """The finished record of one run."""

    graph: torch.fx.Graph
    ops: dict[torch.fx.Node, Op]
    parameters: dict[str, torch.fx.Node]  # by first qualified name; only those that were consumed
    constants: dict[str, Any]
    backwards: list[BackwardCall]
    called: set[str]  # qualified names of the modules whose __call__ ran
    made: dict[torch.fx.Node, list[Any]] = field(default_factory=dict)  # the grad_fn of what a node made
    makers: dict[int, torch.fx.Node] = field(default_factory=dict)  # id of a grad_fn -> the node that made it
    leaves: dict[int, torch.fx.Node] = field(default_factory=dict)  # id of a leaf tensor -> its node
    outputs: list[Any] = field(default_factory=list)  # what the root module's calls returned
    returned: tuple[torch.fx.Node, ...] = ()  # the nodes of the tensors in it

    def behind(self, functions: Sequence[Any]) -> set[torch.fx.Node]:
        """The nodes that autograd's graph reaches first from ``functions``, those of one node."""
        own = {id(f) for f in functions}
        found: set[torch.fx.Node] = set()
        stack, seen = list(functions), set()
        while stack:
            function = stack.pop()
            if function is None or id(function) in seen:
                continue
            seen.add(id(function))
            node = self.makers.get(id(function)) if id(function) not in own else None
            if node is not None:
                found.add(node)
            elif hasattr(function, "variable"):
                if (leaf := self.leaves.get(id(function.variable))) is not None:
                    found.add(leaf)
            else:
                stack.extend(f for f, _ in function.next_functions)
        return found

    def let_go(self) -> None:
        """Free what it holds of autograd's graph, from the loss back, each node while those behind it are held.

        PyTorch frees a chain of nodes that Python has seen by recursion, and a long one overflows the C stack (only
        ``deleteNode`` in torch/csrc/autograd/function.cpp, for nodes that Python has not seen, is a loop).
        """
        self.outputs.clear()
        self.backwards.clear()
        while self.made:
            self.made.popitem()  # the last that was put in

    def graph_module(self, model: nn.Module) -> torch.fx.GraphModule:
        """The recorded run as a module: the run's input tensors in, ``(loss, outputs)`` out.

        ``model`` is the one that was recorded, or one with the same names and shapes: its tensors are held, not copied.
        """
        named = {**dict(model.named_buffers()), **dict(model.named_parameters())}
        return torch.fx.GraphModule({**named, **self.constants}, self.graph, type(model).__name__)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested lists, tuples, sets, dicts, dataclasses and objects of the target's, each place once."""
    stack, seen = [value], set()
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            yield item
            continue
        if item is None or isinstance(item, (str, bytes, int, float, complex, type, nn.Module)) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            stack.extend(reversed(list(item.values())))
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(reversed(list(item)))
        elif hasattr(item, "__dict__") and not callable(item) and not type(item).__module__.startswith("torch"):
            stack.extend(reversed(list(vars(item).values())))


def _given(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors among a call's arguments."""
    found: list[Tensor] = []
    for values in (args, kwargs.values()) if kwargs else (args,):
        for value in values:
            if isinstance(value, Tensor):
                found.append(value)
            elif type(value) is slice:
                found += [part for part in (value.start, value.stop, value.step) if isinstance(part, Tensor)]
            elif type(value) not in _PLAIN:
                found += tensors_in(value)
    return found


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    """Their version counters (``version_of``), fast where all have one."""
    try:
        return [t._version for t in tensors]
    except RuntimeError:
        return [version_of(t) for t in tensors]


class _Unspelled:
    """Stands for an fx node where no graph is written."""

    __slots__ = ("args", "kwargs", "meta", "op", "target")

    def __init__(self, op: str, target: Any, args: tuple[Any, ...]) -> None:
        self.op, self.target, self.args = op, target, args
        self.kwargs: dict[str, Any] = {}
        self.meta: dict[str, Any] = {}


class _Tracer(torch.fx.Tracer):
    """An fx tracer that is handed calls instead of proxies: it keeps fx's conventions for names and attributes."""

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self.root = root
        self.graph = torch.fx.Graph(tracer_cls=_Tracer)
        self.tensor_attrs = {}


_PROPERTIES = (
    *("shape", "dtype", "device", "ndim", "requires_grad", "is_leaf", "grad_fn", "layout", "itemsize", "nbytes", "names"),
    *("is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_nested", "is_mps", "is_xpu", "output_nr", "_version"),
    *("grad", "_base", "_backward_hooks", "is_mkldnn", "is_sparse_csr", "name", "retains_grad"),
)
_METHODS = (
    *("size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "is_contiguous", "is_floating_point"),
    *("is_complex", "is_signed", "is_inference", "is_conj", "is_neg", "element_size", "data_ptr", "get_device", "has_names"),
    *("is_same_size", "is_set_to", "untyped_storage", "is_pinned", "__hash__", "sparse_dim", "dense_dim", "dim_order"),
)
# What says nothing about a tensor's value: no node is written for these. ``.grad`` is a gradient, no value of the forward's.
_METADATA: frozenset[Any] = frozenset(
    [vars(owner)[name].__get__ for owner in (torch._C.TensorBase, Tensor) for name in _PROPERTIES if name in vars(owner)]
    + [getattr(Tensor, name) for name in _METHODS if hasattr(Tensor, name)]
)
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size, type(Ellipsis), complex})

_REARRANGING = frozenset(
    {
        *("__getitem__", "getitem", "select", "narrow", "unbind", "squeeze", "unsqueeze", "view", "reshape", "flatten", "T"),
        *("transpose", "permute", "contiguous", "to", "long", "int", "float", "double", "bool", "cpu", "detach", "clone"),
        *("data", "expand", "split", "chunk", "index_select", "type", "mT", "t", "unflatten", "type_as"),
    }
)
_COLLECTIVES = (
    *("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
)
# Calls that use only the shape, dtype or device of tensors after the first few: how many do count.
_SHAPE_ONLY = {"expand_as": 1, "view_as": 1, "reshape_as": 1, "type_as": 1}
_NEGATIONS = frozenset({"logical_not", "bitwise_not", "__invert__"})
_OPPOSITES = {"le": "gt", "__le__": "__gt__", "ge": "lt", "__ge__": "__lt__", "ne": "eq", "__ne__": "__eq__"}
# Operations that draw from torch's generators: no two calls give the same.
DRAWING = frozenset(
    {
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "bernoulli_"),
        *("multinomial", "normal", "normal_", "uniform_", "random_", "poisson", "exponential_", "geometric_", "cauchy_"),
        *("log_normal_", "dropout", "dropout_", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "rrelu"),
        *("scaled_dot_product_attention", "native_dropout", "gumbel_softmax", "_standard_gamma", "_sample_dirichlet"),
    }
)
# Made of nothing but numbers: what is computed from these alone is the same on every path.
_CONSTANT = frozenset(
    {
        *("zeros", "ones", "arange", "linspace", "logspace", "eye", "zeros_like", "ones_like", "new_zeros", "new_ones"),
        *("tril_indices", "triu_indices"),
    }
)
_unique = itertools.count()  # what is not known to be the same is never the same, in no run
_INDEXING = ("__getitem__", "__setitem__")

_names: dict[Any, str | None] = {}


def _importable(func: Any) -> bool:
    """Whether fx's generated code can name ``func`` and get the same object back."""
    known = _names.get(func, "")
    if known == "":
        name: str | None
        try:
            name = _get_qualified_name(func)
            found: Any = sys.modules.get(name.split(".", 1)[0])
            for part in name.split(".")[1:]:
                found = getattr(found, part, None)
            name = name if found is func else None
        except (RuntimeError, AttributeError):
            name = None
        known = _names[func] = name
    return known is not None


def _has_torch_function(tensors: Sequence[Any]) -> bool:
    """``torch._C._has_torch_function`` without the mode: True for tensor subclasses that override torch functions."""
    if not torch._C._is_torch_function_enabled():  # a subclass's own handler is calling through
        return False
    for tensor in tensors:
        kind = type(tensor)
        if kind is Tensor or kind is nn.Parameter or not hasattr(kind, "__torch_function__"):
            continue
        if kind.__torch_function__ is not torch._C._disabled_torch_function_impl:
            return True
    return False


def _has_torch_function_unary(tensor: Any) -> bool:
    return _has_torch_function((tensor,))


def _has_torch_function_variadic(*tensors: Any) -> bool:
    return _has_torch_function(tensors)


_ASKED = {
    torch._C._has_torch_function: _has_torch_function,
    torch._C._has_torch_function_unary: _has_torch_function_unary,
    torch._C._has_torch_function_variadic: _has_torch_function_variadic,
}
_DISPATCHING = (
    "torch.nn.functional",
    "torch.functional",
    "torch._tensor",
    "torch.nn.init",
    "torch.autograd",
    "torch._lowrank",
)


@contextmanager
def composites_open() -> Iterator[None]:
    """PyTorch's Python functions run inline under the mode instead of arriving at it whole."""
    with ExitStack() as stack:
        for name in _DISPATCHING:
            module = sys.modules.get(name)
            if module is None:
                continue
            asked = {}
            for key, value in vars(module).items():
                if type(value) is BuiltinFunctionType and value in _ASKED:
                    asked[key] = _ASKED[value]
            stack.enter_context(patched(module, **asked))
        yield


class Recorder(AnsweringMode):
    """Records one run. Use ``with recorder.recording(): ...``, then ``finish(loss, outputs)``."""

    def __init__(
        self,
        model: nn.Module,
        device: TraceDevice,
        answers: Answers,
        *,
        twins: Twins | None = None,
        spell: bool = True,
        names: dict[int, str] | None = None,
    ) -> None:
        """``spell``: write the fx graph. Without it the nodes stand for themselves, for paths of which only the answer
        is wanted. ``names``: the parameters' by ``id``, where they are not those that ``model`` has now.
        """
        super().__init__(device, answers, twins)
        self.spell = spell
        self.model = model
        self.tracer = _Tracer(model)
        self.graph = self.tracer.graph
        self.side = torch.fx.Graph(tracer_cls=_Tracer)  # what custom Functions run inside their backward
        self.ops: dict[torch.fx.Node, Op] = {}
        self.parameters: dict[str, torch.fx.Node] = {}
        self.constants: dict[str, Any] = {}
        self.backwards: list[BackwardCall] = []
        self.called: set[str] = set()
        self.outputs: list[Any] = []
        self._parameter_ids = {id(p): n for n, p in model.named_parameters()} if names is None else names
        self._registered = {**{id(b): n for n, b in model.named_buffers()}, **self._parameter_ids}
        self._module_names = {id(m): n for n, m in model.named_modules()}
        self._values: dict[int, torch.fx.Node] = {}  # the node whose value a tensor object is
        self._states: dict[int, torch.fx.Node] = {}  # the node that last wrote it
        self._writes: dict[int, tuple[torch.fx.Node, int]] = {}  # storage -> last in-place write, id of autograd's base
        self._unrecorded: dict[int, int] = {}  # a hash for tensors that no call has taken, by id
        self._calls: Counter[object] = Counter()  # how often each call at each place was made
        self._times: dict[torch.fx.Node, int] = {}  # see _identity
        self._held: dict[torch.fx.Node, frozenset[int] | None] = {}  # see held_by
        self._leaf_ids: dict[torch.fx.Node, int] = {}  # the buffers and attributes that were consumed, by node
        self._storages: dict[int, torch.fx.Node] = {}  # memory -> the last call that made a tensor there
        self._functions: dict[int, torch.fx.Node] = {}  # grad_fn -> the node that made it
        self._made: dict[torch.fx.Node, list[Any]] = {}
        self._alive: list[Any] = []  # ids stay unique while the objects live
        self._stack: ModuleStack = {}
        self._stacks: list[ModuleStack] = []
        self._grad_off: Site | None = None
        self._grad_off_before: Site | None = None  # the place to come back to when grad mode is on for a while
        self._paused = 0
        self._inner: list[Tensor] = []  # parameters that a custom Function's forward used
        self._engine = 0  # inside autograd's engine
        self._inside: list[torch.fx.Node] = []  # custom Functions whose backward is running
        self._wrapped: torch.fx.Node | None = None  # the last call on tensors that functorch wraps
        self._born: dict[int, Site] = {}  # where parameters were made in the run itself
        self.accumulating = False  # inside a backward that fills .grad, not one of ``torch.autograd.grad``
        self._autocasts: list[torch.fx.Node] = []  # entered and not yet left
        self._quiet = not _has_hooks(model)  # no code of the target's runs in backward, but custom Functions'

    # ------------------------------------------------------------------ what is written

    def _write(self, graph: torch.fx.Graph, kind: str, target: Any, args: Any, kwargs: Any, op: Op) -> torch.fx.Node:
        if graph is self.side:  # only explained by its op: its inputs belong to the other graph
            args, kwargs = (), {}
        name = None if kind != "get_attr" else str(target).replace(".", "_")
        if self.spell:
            node = graph.create_node(kind, target, args, kwargs, name=name)
        else:
            node = cast(torch.fx.Node, _Unspelled(kind, target, args))
        op.index = len(self.ops)
        op.module = next(reversed(self._stack), "") if self._stack else ""
        node.meta["nn_module_stack"] = self._stack
        node.meta["op"] = op
        self.ops[node] = op
        return node

    @property
    def _target_graph(self) -> torch.fx.Graph:
        return self.side if self._engine else self.graph

    def placeholder(self, name: str, tensor: Tensor) -> None:
        """Make ``tensor`` an input of the graph, called ``name``."""
        node = self.graph.placeholder(name) if self.spell else cast(torch.fx.Node, _Unspelled("placeholder", name, ()))
        op = Op("input", [], tensor.requires_grad, None, index=len(self.ops))
        node.meta["op"] = self.ops[node] = op
        self._hold(tensor, node)

    def _hold(self, tensor: Tensor, node: torch.fx.Node) -> None:
        self._values[id(tensor)] = self._states[id(tensor)] = node
        self._alive.append(tensor)
        self._storages[self._memory(tensor)] = node
        if tensor.requires_grad:
            self._own(tensor, node)

    def _own(self, tensor: Tensor, node: torch.fx.Node) -> None:
        function = _maker(tensor)
        if function is not None:
            self._functions[id(function)] = node
            self._made.setdefault(node, []).append(function)
            self._alive.append(function)

    def _leaf(self, tensor: Tensor) -> torch.fx.Node:
        """The node of a tensor that no recorded call made."""
        name = self._registered.get(id(tensor))
        if name is None:
            name = f"_tensor_constant{len(self.constants)}"
            self.constants[name] = tensor
        op = Op(name, [], tensor.requires_grad, None)
        node = self._write(self.graph, "get_attr", name, (), {}, op)
        if id(tensor) in self._parameter_ids:
            self.parameters[self._parameter_ids[id(tensor)]] = node
        elif (function := _maker(tensor)) is not None:
            op.opaque, op.site = True, call_site(sys._getframe(1))
            op.name = function.name()
            op.inputs = self._behind(tensor)
        elif (maker := self._storages.get(self._memory(tensor))) is not None:
            op.site = self._born.get(id(tensor)) or call_site(sys._getframe(1))
            op.name = type(tensor).__name__  # an nn.Parameter made of a value, an array's memory: no gradient through it
            op.inputs = [(maker, False)]
        else:
            self._leaf_ids[node] = id(tensor)
        wrapped = self._wrapped if id(tensor) not in self._registered else None
        if wrapped is not None and torch._C._functorch.maybe_current_level() is None:
            op.inputs, self._wrapped = [*op.inputs, (wrapped, False)], None  # vmap and its like unwrap unseen
        self._hold(tensor, node)
        return node

    def _behind(self, tensor: Tensor) -> list[tuple[torch.fx.Node, bool]]:
        """The recorded nodes that autograd's graph reaches from ``tensor`` first: the inputs of what no mode saw."""
        found: dict[torch.fx.Node, bool] = {}
        stack, seen = [_maker(tensor)], set()
        while stack:
            function = stack.pop()
            if function is None or function in seen:
                continue
            seen.add(function)
            node = self._functions.get(id(function))
            if node is not None:
                found[node] = True
            elif hasattr(function, "variable"):
                found[self._value(function.variable)] = True
            else:
                stack.extend(f for f, _ in function.next_functions)
        self._alive.extend(seen)
        return list(found.items())

    def _value(self, tensor: Tensor) -> torch.fx.Node:
        node = self._values.get(id(tensor))
        return node if node is not None else self._leaf(tensor)

    def _consume(self, tensor: Tensor) -> list[tuple[torch.fx.Node, bool]]:
        """The nodes that ``tensor``'s value comes from now, each with whether gradient can flow back to it."""
        self._value(tensor)
        live = tensor.requires_grad
        if live and (function := _maker(tensor)) is not None and id(function) not in self._functions:
            self._unseen_write(tensor, function)
        state = self._states[id(tensor)]
        write = self._writes.get(self._storage(tensor)) if self._writes else None
        if write is None or write[0] is state or self.ops[write[0]].index < self.ops[state].index:
            return [(state, live)]
        node, base = write
        return [(state, live), (node, live and base == id(self._base(tensor)))]

    def _unseen_write(self, tensor: Tensor, function: Any) -> None:
        """A tensor whose ``grad_fn`` changed with no recorded call: note what autograd says it is made of now."""
        inputs = self._behind(tensor)
        self._functions[id(function)] = node = self._states[id(tensor)]
        self._alive.append(function)
        known = {producer for producer, _ in self.ops[node].inputs} | {node}
        self.ops[node].inputs += [pair for pair in inputs if pair[0] not in known]

    @staticmethod
    def _base(tensor: Tensor) -> Tensor:
        base = tensor._base
        return tensor if base is None else base

    @classmethod
    def _memory(cls, tensor: Tensor) -> int:
        """What tells that two tensors lie in the same memory: its address, or on meta the storage's."""
        try:
            return tensor.data_ptr() or cls._storage(tensor)
        except (NotImplementedError, RuntimeError):
            return -id(tensor)

    @staticmethod
    def _storage(tensor: Tensor) -> int:
        try:
            return int(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):  # sparse and functorch tensors have none
            return -id(tensor)

    def _argument(self, value: Any) -> Any:
        """``value`` as an fx argument: tensors become nodes; what generated code can't spell becomes an attribute."""
        if isinstance(value, Tensor):
            return self._value(value)
        if value is None or (isinstance(value, (bool, int, float, complex, str)) and type(value).__module__ == "builtins"):
            return value
        if type(value) in (torch.dtype, torch.device, torch.memory_format, torch.layout, type(Ellipsis)):
            return value
        if isinstance(value, (torch.Size, list, tuple)) and not hasattr(value, "_fields"):
            items = [self._argument(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {key: self._argument(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(*(self._argument(part) for part in (value.start, value.stop, value.step)))
        if isinstance(value, int):  # an IntEnum, a numpy-like integer
            return int(value)
        if isinstance(value, float):
            return float(value)
        name = f"_object_constant{len(self.constants)}"
        self.constants[name] = value
        self._alive.append(value)
        return self._write(self._target_graph, "get_attr", name, (), {}, Op(name, [], False, None))

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any, Any, Any]:
        """How fx spells this call: kind, target, args, kwargs."""
        if not self.spell:
            return "call_function", func, tuple(a for a in args if type(a) in _PLAIN), {}
        fx_args, fx_kwargs = self._argument(args), self._argument(kwargs)
        name = getattr(func, "__name__", "")
        if isinstance(func, (MethodDescriptorType, WrapperDescriptorType)) or (
            isinstance(func, FunctionType) and getattr(Tensor, name, None) is func
        ):
            if getattr(Tensor, name, None) is func:
                return "call_method", name, fx_args, fx_kwargs
        elif name in ("__get__", "__set__"):  # a property of Tensor: .T, .data, .real
            attribute = func.__self__.__name__
            if name == "__get__":
                return "call_function", getattr, (fx_args[0], attribute), {}
            return "call_function", setattr, (fx_args[0], attribute, fx_args[1]), {}
        elif not _importable(func):
            func = _named(func)
        return "call_function", func, fx_args, fx_kwargs

    # ------------------------------------------------------------------ what is seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _METADATA:
            return func(*args, **(kwargs or {}))
        if self._engine and not self._inside and self._quiet:
            return func(*args, **(kwargs or {}))
        kwargs = dict(kwargs) if kwargs else {}
        name = getattr(func, "__name__", "")
        if name == "_set_grad_enabled":
            return self._grad_mode(func, args)
        if func in self._same:
            return args[0]
        if func is Tensor.record_stream:
            return None
        func, args = self.rewrite(func, args, kwargs)
        if name in NUMBERS:
            args, kwargs = self.numbers(name, args, kwargs, read_site(sys._getframe(1)))
        elif name in READS or name in _INDEXING or name in SHAPES or name == "where":
            site = read_site(sys._getframe(1))
            if name in READS:
                func = functools.partial(self._read, func, name, site)
            elif name in _INDEXING:
                args = self.bounds(args, site)
            args = args if name in READS else self.mask(name, args, site)
        if self._paused:
            self._inner += [t for t in _given(args, kwargs) if id(t) in self._parameter_ids]
        if self._paused or (self._engine and not self._inside):
            return func(*args, **kwargs) if name in READS else self.execute(func, args, kwargs)
        return self._record(func, name, args, kwargs)

    def _read(self, func: Any, name: str, site: Site | None, *args: Any, **kwargs: Any) -> Any:
        return self.read(func, name, args, kwargs, site)

    def expression(self, tensor: Tensor) -> tuple[int, bool]:
        """A hash of the recorded operations that made ``tensor``; a comparison and its opposite differ in the sign only."""
        node = self._states.get(id(tensor))
        if node is None:
            return self._unrecorded.setdefault(id(tensor), hash(self._registered.get(id(tensor), next(_unique)))), False
        negated = False
        while (name := self.ops[node].name) in _NEGATIONS and self.ops[node].inputs:
            negated, node = not negated, self.ops[node].inputs[0][0]
        if name in DRAWING or node.op in ("placeholder", "get_attr"):  # no two draws are one value, nor two inputs
            return self._identity(node), negated
        name = name.strip("_")  # == arrives as __eq__, != as ne
        if name in _OPPOSITES:
            return hash((_OPPOSITES[name], *self._made_by(node, 1))), not negated
        return hash((name, *self._made_by(node, 1))), negated

    def _made_by(self, node: torch.fx.Node, depth: int) -> tuple[object, ...]:
        """What ``node`` was made of, as hashable values; beyond a few operations the node itself stands for them."""
        op = self.ops[node]
        parts: list[object] = []
        for producer, _ in op.inputs:
            below = self.ops[producer]
            known = not below.inputs or below.name in DRAWING or depth > 8
            parts.append(self._identity(producer) if known else hash((below.name, *self._made_by(producer, depth + 1))))
        return (*parts, *(repr(a) for a in (*node.args, *node.kwargs.values()) if not isinstance(a, torch.fx.Node)))

    def _identity(self, node: torch.fx.Node) -> int:
        """A hash of ``node`` that is the same in every run: its name if it has one, else the call and which time it was."""
        if node.op in ("placeholder", "get_attr"):
            return hash((node.op, str(node.target)))
        for new in itertools.islice(self.ops, len(self._times), None):
            op = self.ops[new]
            place = (op.name, op.site.code, op.site.line, op.site.at) if op.site is not None else op.name
            self._calls[place] += 1
            self._times[new] = hash((place, self._calls[place]))
        return self._times[node]

    def is_free(self, tensor: Tensor) -> bool:
        """Whether only views and conversions lie between ``tensor`` and the run's inputs."""
        node = self._values.get(id(tensor))
        while node is not None and node.op != "placeholder":
            op = self.ops[node]
            if op.name not in _REARRANGING:
                return not op.inputs and node.op == "get_attr"  # data the target holds
            node = op.inputs[0][0] if op.inputs else None
        return True

    def held_by(self, tensor: Tensor) -> frozenset[int] | None:
        node = self._states.get(id(tensor))
        if node is None:  # not taken by any call so far
            held = id(tensor) in self._registered and id(tensor) not in self._parameter_ids
            return frozenset({id(tensor)}) if held else None
        stack = [node]
        while stack:
            node = stack[-1]
            waiting = [producer for producer, _ in self.ops[node].inputs if producer not in self._held]
            if waiting and node not in self._held:
                stack += waiting
                continue
            stack.pop()
            if node not in self._held:
                self._held[node] = self._held_in(node)
        return self._held[node]

    def _held_in(self, node: torch.fx.Node) -> frozenset[int] | None:
        """``held_by`` of what ``node`` made, its inputs' known."""
        op = self.ops[node]
        if node in self._leaf_ids:
            return frozenset({self._leaf_ids[node]}) if not op.inputs else None
        if op.name in DRAWING or op.opaque or op.custom:
            return None
        if not op.inputs:  # within forward: what a step makes itself may be its data
            return frozenset() if op.name in _CONSTANT and "" in node.meta["nn_module_stack"] else None
        found: frozenset[int] = frozenset()
        for producer, _ in op.inputs:
            held = self._held[producer]
            if held is None:
                return None
            found |= held
        return found

    def drawn_from(self, tensor: Tensor) -> range | None:
        """What ``tensor``'s one element can be, if it was drawn by ``torch.randint`` and only viewed since."""
        node = self._states.get(id(tensor))
        while node is not None and self.ops[node].name in _REARRANGING:
            node = self.ops[node].inputs[0][0] if self.ops[node].inputs else None
        if node is None or self.ops[node].name not in ("randint", "randint_like"):
            return None
        numbers = [a for a in node.args if isinstance(a, int)]  # randint([low,] high, size), randint_like(t, [low,] high)
        low, high = node.kwargs.get("low", 0), node.kwargs.get("high")
        if len(numbers) > 1:
            low, high = numbers[:2]
        elif numbers:
            low, high = (numbers[0], high) if high is not None else (low, numbers[0])
        return range(low, high) if isinstance(low, int) and isinstance(high, int) else None

    def _record(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        given = _given(args, kwargs)
        versions = _versions(given)
        if name in _SHAPE_ONLY or name.endswith("_like") or name in ("new_zeros", "new_ones", "new_empty", "new_full"):
            given = given[: _SHAPE_ONLY.get(name, 0)]  # of the others only shape, dtype or device is used
            versions = versions[: len(given)]
        live = [t.requires_grad for t in given]
        spelled = func.args[0] if type(func) is functools.partial else func  # a read: what is called stands for what answers
        attribute = func.__self__.__name__ if name in ("__get__", "__set__") else ""
        late = bool(attribute) or name == "requires_grad_"  # most of these write no node: look at their inputs only then
        inputs = None if late else [self._consume(t) for t in given]
        try:
            result = func(*args, **kwargs) if name in READS else self.execute(func, args, kwargs)
        except (RuntimeError, NotImplementedError, ValueError) as error:
            if self.on_meta and (not self.answers.forced or of_meta(error)):
                raise NoValue(f"{name or func} does not run on meta tensors", call_site(sys._getframe(2))) from error
            raise
        outputs = [result] if isinstance(result, Tensor) else list(tensors_in(result)) if _may_hold(result) else []
        now = _versions(given)
        written = [] if now == versions else [t for t, a, b in zip(given, versions, now, strict=True) if a != b]
        if name == "__set__" and attribute in ("data", "grad"):
            written = [given[0]]
        if not outputs and not written and name not in READS:
            return result
        same = [t.requires_grad == was for t, was in zip(given, live, strict=True) if result is t]
        if any(same) and not written and not late:
            return result  # the very same tensor: .contiguous(), .to() where there is nothing to do
        if inputs is None:
            inputs = [self._consume(t) for t in given]
            if name == "requires_grad_":
                inputs = [[(node, was and flag) for node, flag in pairs] for pairs, was in zip(inputs, live, strict=True)]
        enabled = torch.is_grad_enabled()
        edges: dict[torch.fx.Node, bool] = {}
        for tensor, pairs in zip(given, inputs, strict=True):
            itself = any(tensor is w for w in written)
            kept = itself or (enabled and not (name == "__set__" and attribute == "data"))  # past autograd's back
            for node, flag in pairs:
                edges[node] = edges.get(node, False) or (flag and kept)
        bases = [base for t in written if (base := t._base) is not None]
        if written:
            for base in bases:
                for node, flag in self._consume_before(base, live, given):
                    edges[node] = edges.get(node, False) or flag
        carries = any(t.requires_grad for t in outputs) or any(t.requires_grad for t in written)
        op = Op(attribute or name, list(edges.items()), carries, call_site(sys._getframe(2)), writes=bool(written))
        if not enabled:
            op.grad_off = self._grad_off or op.site
        kind, target, fx_args, fx_kwargs = self._call(spelled, args, kwargs)
        node = self._write(self._target_graph, kind, target, fx_args, fx_kwargs, op)
        self._place(node, result, outputs, written, bases)
        if torch._C._functorch.maybe_current_level() is not None:
            self._wrapped = node
        return result

    def _consume_before(self, base: Tensor, live: list[bool], given: list[Tensor]) -> list[tuple[torch.fx.Node, bool]]:
        """What a written view's base was made of: its history goes on through the write."""
        self._value(base)
        state = self._states[id(base)]
        write = self._writes.get(self._storage(base))
        pairs = [(state, base.requires_grad)]
        if write is not None and write[0] is not state:
            pairs.append((write[0], base.requires_grad))
        return pairs

    def _place(
        self, node: torch.fx.Node, result: Any, outputs: list[Tensor], written: list[Tensor], bases: list[Tensor]
    ) -> None:
        """Note ``node`` as the maker of ``outputs`` and the last writer of ``written`` and the bases they are views of."""
        if isinstance(result, Tensor):
            self._hold(result, node)
        elif outputs:
            self._hold_items(node, result)
        for tensor in (*written, *bases):
            self._states[id(tensor)] = node
            self._alive.append(tensor)
            if tensor.requires_grad:
                self._own(tensor, node)
        for tensor in written:
            self._writes[self._storage(tensor)] = (node, id(self._base(tensor)))

    def _hold_items(self, node: torch.fx.Node, result: Any) -> None:
        """Several tensors from one call: fx reaches each by ``operator.getitem``."""
        if isinstance(result, (list, tuple)):
            for position, item in enumerate(result):
                if isinstance(item, Tensor):
                    op = Op("getitem", [(node, item.requires_grad)], item.requires_grad, self.ops[node].site)
                    op.grad_off = self.ops[node].grad_off
                    part = self._write(self._target_graph, "call_function", operator.getitem, (node, position), {}, op)
                    self._hold(item, part)
                elif _may_hold(item):
                    op = Op("getitem", [(node, True)], True, self.ops[node].site)
                    part = self._write(self._target_graph, "call_function", operator.getitem, (node, position), {}, op)
                    self._hold_items(part, item)
        else:  # a dict or an object: its tensors are the call's, without a spelling of their own
            for tensor in tensors_in(result):
                self._hold(tensor, node)

    def _grad_mode(self, func: Any, args: Any) -> Any:
        enabled = bool(args[0])
        if self.spell and not self._paused and not self._engine:
            self.graph.create_node("call_function", func, (enabled,), {}).meta["nn_module_stack"] = self._stack
        frame = sys._getframe(2)
        if enabled:
            self._grad_off_before, self._grad_off = self._grad_off, None
        elif frame.f_code.co_name == "__exit__" and self._grad_off_before is not None:  # of enable_grad within no_grad
            self._grad_off, self._grad_off_before = self._grad_off_before, None
        elif torch.is_grad_enabled() or self._grad_off is None:
            self._grad_off = decorated_site(frame) or call_site(frame)
        return func(*args)

    # ------------------------------------------------------------------ what is wrapped

    def _apply(self, plain: Callable[..., Any]) -> Any:
        """``torch.autograd.Function.apply`` as one node: what runs inside it is not the forward's graph."""
        recorder = self

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder._paused or (recorder._engine and not recorder._inside):
                return plain(cls, *args, **kwargs)
            direct = {id(a) for a in args if isinstance(a, Tensor)}  # nested ones get no gradient (Function's contract)
            enabled = torch.is_grad_enabled()
            edges: dict[torch.fx.Node, bool] = {}
            given = _given(args, kwargs)
            versions = _versions(given)
            slots: list[list[torch.fx.Node]] = []
            for tensor in given:
                pairs = recorder._consume(tensor)
                for node, flag in pairs:
                    edges[node] = edges.get(node, False) or (flag and enabled and id(tensor) in direct)
                if id(tensor) in direct:
                    slots.append([node for node, _ in pairs])
            recorder._paused += 1
            recorder._inner = []
            try:
                result = plain(cls, *args, **kwargs)
            finally:
                recorder._paused -= 1
            for parameter in recorder._inner:
                edges.setdefault(recorder._value(parameter), False)
            outputs = list(tensors_in(result))
            written = [t for t, a, b in zip(given, versions, _versions(given), strict=True) if a != b]
            op = Op(cls.__name__, list(edges.items()), any(t.requires_grad for t in outputs), call_site(sys._getframe(1)))
            op.custom = True
            if not enabled:
                op.grad_off = recorder._grad_off or op.site
            fx_args = recorder._argument(args) if recorder.spell else ()
            node = recorder._write(recorder._target_graph, "call_function", _named(cls.apply, cls.__name__), fx_args, {}, op)
            recorder._place(node, result, outputs, written, [b for t in written if (b := t._base) is not None])
            for function in {f for t in outputs if (f := _maker(t)) is not None}:
                recorder._watch(function, node, slots)
            return result

        return classmethod(apply)

    def _watch(self, function: Any, node: torch.fx.Node, slots: list[list[torch.fx.Node]]) -> None:
        """See a custom backward run: what it returns None for gets no gradient, what it runs is part of the graph."""

        def before(grads: Any) -> None:
            self._inside.append(node)

        def after(grad_inputs: Any, grad_outputs: Any) -> None:
            if self._inside and self._inside[-1] is node:
                self._inside.pop()
            op = self.ops[node]
            if len(grad_inputs) != len(slots):
                return
            given = {n for nodes, grad in zip(slots, grad_inputs, strict=True) if grad is not None for n in nodes}
            none = {n for nodes, grad in zip(slots, grad_inputs, strict=True) if grad is None for n in nodes} - given
            op.inputs = [(n, flag and n not in none) for n, flag in op.inputs]

        function.register_prehook(before)
        function.register_hook(after)

    def _run_backward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Every entry into autograd's engine: ``backward`` calls are noted, ``autograd.grad`` becomes a node."""

        def run(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            before, self.accumulating = self.accumulating, bool(kwargs.get("accumulate_grad", False))
            try:
                return noted(t_outputs, *args, **kwargs)
            finally:
                self.accumulating = before

        def noted(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self._paused:
                return plain(t_outputs, *args, **kwargs)
            roots = [t for t in t_outputs if isinstance(t, Tensor)]
            accumulate = self.accumulating
            leaves = args[3] if len(args) > 3 else ()
            if accumulate:
                nodes = [node for t in roots for node, _ in self._consume(t)]
                functions = tuple(t.grad_fn for t in roots)
                named = frozenset(id(t) for t in leaves if isinstance(t, Tensor)) or None
                inside = self._inside[-1] if self._inside else None
                self.backwards.append(BackwardCall(tuple(nodes), functions, inside, named))
            else:
                given = [*roots, *(t for t in leaves if isinstance(t, Tensor))]
                consumed = [(node, False) for t in given for node, _ in self._consume(t)]
            inside_before, self._inside = self._inside, []
            self._engine += 1
            try:
                result = plain(t_outputs, *args, **kwargs)
            finally:
                self._engine -= 1
                self._inside = inside_before
            if not accumulate:
                self._gradients(result, consumed)
            return result

        return run

    def _gradients(self, result: Any, consumed: list[tuple[torch.fx.Node, bool]]) -> None:
        """What ``torch.autograd.grad`` returned: its differentiable inputs are read off autograd's graph."""
        gradients = [g for g in result if isinstance(g, Tensor)]
        edges = dict(consumed)
        for gradient in gradients:
            if gradient.grad_fn is not None:
                edges |= dict(self._behind(gradient))
        op = Op("autograd.grad", list(edges.items()), any(g.requires_grad for g in gradients), call_site(sys._getframe(1)))
        op.opaque = True
        for gradient in gradients:
            if id(gradient) in self._values:
                continue
            name = f"_tensor_constant{len(self.constants)}"
            self.constants[name] = gradient
            self._hold(gradient, self._write(self.graph, "get_attr", name, (), {}, op_copy(op)))

    def _module_call(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            name = recorder._module_names.get(id(module))
            if name is None:
                return plain(module, *args, **kwargs)
            recorder.called.add(name)
            before = recorder._stack
            recorder._stack = {**before, name: (name, type(module))}
            try:
                result = plain(module, *args, **kwargs)
            finally:
                recorder._stack = before
            if name == "" and not before:
                recorder.outputs.append(result)
            return result

        return call

    def _loud(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A call that gives backward code of the target's to run: a hook, a checkpoint's recomputation."""

        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._quiet = False
            return plain(*args, **kwargs)

        return call

    def _new_parameter(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
            parameter = plain(cls, *args, **kwargs)
            if (site := call_site(sys._getframe(1))) is not None:
                self._born[id(parameter)] = site
                self._alive.append(parameter)
            return parameter

        return new

    def _collective(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A collective that fills its first argument from its second: data flows, gradient does not."""

        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = plain(*args, **kwargs)
            if self._paused or self._engine or len(args) < 2:
                return result
            edges = {node: False for t in tensors_in(args[1]) for node, _ in self._consume(t)}
            filled = list(tensors_in(args[0]))
            op = Op(name, list(edges.items()), False, call_site(sys._getframe(1)))
            node = self._write(self.side, "call_function", _named(plain, name), (), {}, op)
            for tensor in filled:
                self._value(tensor)
                self._states[id(tensor)] = node
            return result

        return call

    def _enter_autocast(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """``torch.autocast`` as the nodes that export's graphs have for it (torch/amp/autocast_mode.py)."""

        def enter(mode: Any) -> Any:
            if self.spell and not self._paused and not self._engine:
                args = (mode.device, mode.fast_dtype, mode._enabled, mode._cache_enabled)
                node = self.graph.create_node("call_function", torch.amp.autocast_mode._enter_autocast, args, {})
                self._autocasts.append(node)
            return plain(mode)

        return enter

    def _exit_autocast(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def leave(mode: Any, *exc: Any) -> Any:
            if self.spell and not self._paused and not self._engine and self._autocasts:
                node = self._autocasts.pop()
                self.graph.create_node("call_function", torch.amp.autocast_mode._exit_autocast, (node,), {})
            return plain(mode, *exc)

        return leave

    def _inference(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def enter(mode: Any) -> Any:
            frame = sys._getframe(1)
            if mode.mode and torch.is_grad_enabled():
                self._grad_off = decorated_site(frame) or call_site(frame)
            return plain(mode)

        return enter

    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        """While the block runs, torch calls of this thread are recorded."""
        inference = torch.autograd.grad_mode.inference_mode
        with ExitStack() as stack:
            stack.enter_context(composites_open())
            stack.enter_context(patched(torch.autograd.Function, apply=self._apply(function_apply())))
            engine = vars(torch.autograd)["_engine_run_backward"]  # imported there from torch/autograd/graph.py
            stack.enter_context(patched(torch.autograd, _engine_run_backward=self._run_backward(engine)))
            stack.enter_context(patched(nn.Module, __call__=self._module_call(nn.Module.__call__)))
            hooks = torch.autograd.graph.saved_tensors_hooks
            stack.enter_context(patched(hooks, __enter__=self._loud(hooks.__enter__)))
            stack.enter_context(patched(Tensor, register_hook=self._loud(Tensor.register_hook)))
            stack.enter_context(patched(nn.Parameter, __new__=self._new_parameter(nn.Parameter.__new__)))
            collectives = {name: self._collective(name, vars(dist)[name]) for name in _COLLECTIVES}
            stack.enter_context(patched(dist, **collectives))
            stack.enter_context(patched(dist.distributed_c10d, **collectives))
            cast = torch.autocast
            enter, leave = cast.__enter__, cast.__exit__
            stack.enter_context(patched(cast, __enter__=self._enter_autocast(enter), __exit__=self._exit_autocast(leave)))
            stack.enter_context(patched(inference, __enter__=self._inference(inference.__enter__)))
            stack.enter_context(self)
            yield self

    def finish(self, loss: Tensor, outputs: Sequence[Tensor]) -> Recording:
        """The recording, closed with an output node of (loss, outputs)."""
        returned = tuple(self._value(t) for t in outputs)
        lost = self._value(loss)
        if self.spell:
            self.graph.output((lost, returned))
        for node, op in self.ops.items():
            if op.site is not None:
                code, line = op.site.code, op.site.line
                node.meta["stack_trace"] = f'File "{code.co_filename}", line {line}, in {code.co_name}'
        return Recording(
            graph=self.graph,
            ops=self.ops,
            parameters=self.parameters,
            constants=self.constants,
            backwards=self.backwards,
            called=self.called,
            made=self._made,
            makers=self._functions,
            leaves=self._values,
            outputs=self.outputs,
            returned=returned,
        )


def _maker(tensor: Tensor) -> Any:
    """``tensor.grad_fn``; None too where autograd refuses to say.

    It does for a view made under ``no_grad`` of a tensor that was written to since (``VariableHooks::grad_fn`` in
    torch/csrc/autograd/variable.cpp). In a run of the target only what consumes such a view raises, so only that may here.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def of_meta(error: Exception) -> bool:
    """Whether a call failed because its tensors are on meta, and not because it can't be made with such tensors at all.

    Errors of every device name the tensors' type, there ``MetaFloatType``.
    """
    return isinstance(error, NotImplementedError) or bool(re.search(r"\bmeta\b", str(error), re.IGNORECASE))


def op_copy(op: Op) -> Op:
    """The same call, for another of its results."""
    return Op(op.name, op.inputs, op.carries, op.site, op.grad_off, op.module, op.index, op.opaque, op.custom)


def _has_hooks(model: nn.Module) -> bool:
    """Whether backward runs hooks that were registered before the run."""
    if any(p._backward_hooks for p in model.parameters()):
        return True
    return any(m._backward_hooks or m._backward_pre_hooks for m in model.modules())


def _may_hold(result: Any) -> bool:
    """Whether a call's result can have tensors in it."""
    return not (
        result is None or isinstance(result, (bool, int, float, complex, str, torch.Size, torch.dtype, torch.device))
    )


def _named(func: Any, name: str = "") -> Callable[..., Any]:
    """A plain function that calls ``func``: generated code can hold any function object under a name of its own."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    call.__name__ = name or getattr(func, "__name__", "call").strip("_<>") or "call"
    call.__qualname__ = call.__name__
    call.__module__ = "ddplint.trace.recorder"
    return call
