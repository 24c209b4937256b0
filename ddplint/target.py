"""The target: import the factory, build the model, make the example inputs, take the loss.

Whatever the target's code does wrong becomes one ``DdplintError`` that names the target's own last line.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ddplint.adapters import accelerate, choose
from ddplint.adapters.base import Adapted, Given
from ddplint.adapters.base import Inputs as Inputs
from ddplint.blame import blame as blame  # had from here, by what runs a target
from ddplint.blame import last_line as last_line
from ddplint.blame import said as said
from ddplint.errors import DdplintError
from ddplint.rules import TargetSpec, TensorSpec
from ddplint.trace.devices import DeviceMode
from ddplint.trace.patching import patched
from ddplint.trace.recorder import tensors_in


@dataclass(frozen=True, slots=True)
class Target:
    """A loaded target. ``build()`` returns a new model; each of ``inputs`` returns new (args, kwargs).

    ``loss(output)`` returns (loss, how it was taken); ``step(model)``, if there is one, stands for inputs and loss.
    ``adapter`` names the frameworks whose ways were followed, "" for a plain module; ``notices`` say what was made up;
    ``trained(model)`` returns the parameters of the model's optimizers, where the framework has them. ``zeroes``: the
    model's step clears gradients itself, and nobody else does (the reducer can tell).
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: tuple[Callable[[], Inputs], ...]
    loss: Callable[[Any], tuple[torch.Tensor, str]]
    step: Callable[[nn.Module], Any] | None
    adapter: str = ""
    notices: tuple[str, ...] = ()
    trained: Callable[[nn.Module], list[nn.Parameter]] | None = None
    zeroes: bool = False


def take_step(step: Callable[[nn.Module], Any], model: nn.Module) -> Any:
    """What ``step(model)`` returns. Of a model wrapped in DDP the step gets the module itself, by its own names.

    A training script says ``ddp.module`` where it means a part of the model; a step that was written for the bare model
    does not. Its calls of the model go through the wrapper all the same.
    """
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return step(model)
    plain = nn.Module.__call__
    inside = False

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if module is not model.module or inside:
            return plain(module, *args, **kwargs)
        inside = True
        try:
            return plain(model, *args, **kwargs)
        finally:
            inside = False

    with patched(nn.Module, __call__=call):
        return step(model.module)


def _import(path: str, base: str, what: str) -> ModuleType:
    """The module ``path`` names: a file if it ends in .py or has a separator, else a dotted module name."""
    root = base or os.getcwd()
    if root not in sys.path:
        sys.path.insert(0, root)
    is_file = path.endswith(".py") or "/" in path or os.sep in path
    try:
        if not is_file:
            return importlib.import_module(path)
        file = os.path.abspath(os.path.join(root, path))
        if not os.path.isfile(file):
            raise DdplintError(f"no such file: {path}", where=what, fix=f"paths start from {root}")
        folder, name = os.path.dirname(file), os.path.splitext(os.path.basename(file))[0]
        known = sys.modules.get(name)
        if known is not None and os.path.abspath(getattr(known, "__file__", "") or "") == file:
            return known
        if folder not in sys.path:
            sys.path.insert(0, folder)
        name = name if known is None and name.isidentifier() else f"ddplint_target_{abs(hash(file))}"
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise DdplintError(f"{path} is not a Python file", where=what, fix="name a .py file or a module")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        return module
    except ModuleNotFoundError as error:
        if error.name and not is_file and path.split(".")[0] == error.name.split(".")[0]:
            raise DdplintError(
                f"no module named {error.name!r}",
                where=what,
                fix=f"looked on sys.path and in {root}; install it or name a file",
            ) from error
        raise blame(f"importing {path}", error) from error
    except SyntaxError as error:
        place = f"{error.filename}:{error.lineno}" if error.filename else what
        raise DdplintError(f"importing {path} failed: {said(error)}", where=place, fix="mend the syntax") from error
    except DdplintError:
        raise
    except Exception as error:
        raise blame(f"importing {path}", error) from error


def _resolve(reference: str, base: str, what: str, default: str | None = None) -> Any:
    """What "module:name" or "file.py:name" refers to; ``name`` may be dotted."""
    path, colon, attribute = reference.rpartition(":")
    if not colon or (os.sep in attribute or attribute.endswith(".py")):  # a path alone (or C:\\path)
        path, attribute = reference, default or ""
    if not path or not attribute:
        raise DdplintError(
            f"{reference!r} is no reference", where=what, fix='write "module:callable" or "path/file.py:callable"'
        )
    found: Any = _import(path, base, what)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise DdplintError(f"{path} has no {attribute!r}", where=what, fix=_near(part, found))
        found = getattr(found, part)
    return found


def _near(name: str, module: Any) -> str:
    import difflib

    names = [n for n in dir(module) if not n.startswith("_")]
    close = difflib.get_close_matches(name, names, 1)
    return f"did you mean {close[0]!r}?" if close else "name a function or class that it defines"


def _callable(reference: str, base: str, what: str, default: str | None = None) -> Callable[..., Any]:
    found = _resolve(reference, base, what, default)
    if not callable(found):
        raise DdplintError(
            f"{reference} is a {type(found).__name__}, not callable", where=what, fix="name a function or a class"
        )
    result: Callable[..., Any] = found
    return result


def load(spec: TargetSpec) -> Target:
    """The target that ``spec`` describes, imported but not built. Raises DdplintError."""
    factory = _callable(spec.factory, spec.base, "factory", "build")
    of_framework = choose.from_class(factory)
    module = sys.modules.get(getattr(factory, "__module__", ""), None)
    path = spec.factory.rpartition(":")[0] or spec.factory
    if spec.from_module:
        module = _import(path, spec.base, "factory") if ":" in spec.factory else _import(spec.factory, spec.base, "factory")

    def part(reference: str | None, name: str) -> Any:
        if reference is not None:
            return _callable(reference, spec.base, name)
        asked = spec.from_module and module is not None and not (of_framework and name in ("loss", "step"))
        found = getattr(module, name, None) if asked else None  # a class of a framework has a loss and a step of its own
        if found is not None and not callable(found):
            raise DdplintError(
                f"{path} has a {name} that is a {type(found).__name__}, not callable",
                where=name,
                fix="name a function or a class",
            )
        return found

    step = part(spec.step, "step")
    variants = part(spec.variants, "variants")
    makers: list[Callable[[], Any]] = []
    if isinstance(spec.inputs, str) or spec.inputs is None:
        given = part(spec.inputs, "inputs")
        if given is not None:
            makers.append(given)
    else:
        makers.append(_from_specs(spec.inputs))
    if variants is not None:
        try:
            makers += [maker for maker in variants() if maker not in makers]
        except Exception as error:
            raise blame("variants()", error) from error
    reference = spec.loss
    if reference is None or ":" in reference:
        loss = part(reference, "loss")
        take = _by_function(loss) if loss is not None else _stand_in
    else:
        loss, take = reference, _by_path(reference)
    made = functools.partial(_made, of_framework or factory, spec)
    given = Given(inputs=bool(makers), loss=loss is not None, step=step is not None)
    adapted = _adapted(made, given)
    if adapted is not None:
        if adapted.inputs is not None and not makers:
            makers.append(adapted.inputs)
        step = step or adapted.step
        if adapted.loss is not None:
            take = _by_function(adapted.loss)
    if not makers and step is None:
        raise DdplintError(
            f"{spec.factory} has no example inputs",
            where="inputs",
            fix="add inputs() -> (args, kwargs) beside the factory, or a step(model)",
        )
    complete = adapted.complete if adapted is not None else None
    return Target(
        name=spec.factory if ":" in spec.factory else f"{spec.factory}:build",
        build=lambda: _build(made, spec, given),
        inputs=tuple(_checked(maker, complete) for maker in makers),
        loss=take,
        step=step,
        adapter=adapted.name if adapted is not None else "",
        notices=adapted.notices if adapted is not None else (),
        trained=adapted.trained if adapted is not None else None,
        zeroes=adapted.zeroes if adapted is not None else False,
    )


def _made(factory: Callable[..., Any], spec: TargetSpec) -> Any:
    with choose.without_weights():
        made = factory(**copy.deepcopy(dict(spec.kwargs)))
    if isinstance(made, nn.parallel.DistributedDataParallel) and not accelerate.is_prepared(made):
        return made.module  # names are the wrapped module's, as DDP itself reports them
    return made


def _adapted(make: Callable[[], Any], given: Given) -> Adapted | None:
    """What the framework that the target uses makes of it, from one building: on meta, where that can be."""
    accelerate.forget()
    if not choose.imported() and (given.inputs or given.step):
        return None  # else the factory may import one
    try:
        with DeviceMode("meta"):
            made = make()
        adapted = choose.adapt(made, given)
        if adapted is None or adapted.inputs is None or not any(t.is_meta for t in tensors_in(adapted.inputs())):
            return adapted
    except Exception as error:
        failed: Exception | None = error
    else:
        failed = None  # a batch that the module itself holds: it needs its values
    doing = "the factory"
    try:
        with DeviceMode("cpu"):
            made = make()
        doing = "what the factory returned"
        return choose.adapt(made, given)
    except DdplintError:
        raise
    except Exception as error:
        raise blame(doing, error) from (failed or error)


def _build(make: Callable[[], Any], spec: TargetSpec, given: Given) -> nn.Module:
    model = make()
    if choose.imported():
        adapted = choose.adapt(model, replace(given, known=True))
        model = adapted.model if adapted is not None else model
    if not isinstance(model, nn.Module):
        raise DdplintError(
            f"the factory returned a {type(model).__name__}", where=spec.factory, fix="it has to return a torch.nn.Module"
        )
    return model


def _checked(maker: Callable[[], Any], complete: Callable[[Inputs], Inputs] | None = None) -> Callable[[], Inputs]:
    """``maker`` with its answer looked at; ``complete`` adds what the framework knows to be lacking."""

    def make() -> Inputs:
        try:
            made = maker()
        except Exception as error:
            raise blame("inputs()", error) from error
        if (
            isinstance(made, tuple)
            and len(made) == 2
            and isinstance(made[0], (tuple, list))
            and isinstance(made[1], Mapping)
        ):
            inputs = tuple(made[0]), dict(made[1])
            return complete(inputs) if complete is not None else inputs
        raise DdplintError(
            f"inputs() returned a {type(made).__name__}",
            where="inputs",
            fix="it has to return (args, kwargs): a tuple and a dict",
        )

    return make


def _from_specs(specs: Any) -> Callable[[], Inputs]:
    def tensor(value: Any) -> Any:
        if not isinstance(value, TensorSpec):
            return value
        dtype = getattr(torch, value.dtype)
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(value.shape, dtype=dtype)
        return torch.randint(value.low, value.high, value.shape).to(dtype)

    def make() -> Inputs:
        if isinstance(specs, Mapping):
            return (), {name: tensor(value) for name, value in specs.items()}
        return tuple(tensor(value) for value in specs), {}

    return make


def _scalar(loss: Any, how: str) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor):
        raise DdplintError(
            f"the loss ({how}) is a {type(loss).__name__}", where="loss", fix="it has to be a tensor of one element"
        )
    if loss.numel() != 1:
        raise DdplintError(
            f"the loss ({how}) has shape {tuple(loss.shape)}",
            where="loss",
            fix="it has to be a scalar: reduce it, for instance by .mean()",
        )
    return loss


def _by_function(function: Callable[[Any], Any]) -> Callable[[Any], tuple[torch.Tensor, str]]:
    def take(output: Any) -> tuple[torch.Tensor, str]:
        return _scalar(function(output), "of loss()"), ""

    return take


def _by_path(path: str) -> Callable[[Any], tuple[torch.Tensor, str]]:
    def take(output: Any) -> tuple[torch.Tensor, str]:
        value = output
        for key in path.split("."):
            try:
                if isinstance(value, Mapping):
                    value = value[key]
                elif key.lstrip("-").isdigit():
                    value = value[int(key)]
                else:
                    value = getattr(value, key)
            except (KeyError, IndexError, AttributeError, TypeError) as error:
                have = f"keys {list(value)}" if isinstance(value, Mapping) else f"a {type(value).__name__}"
                raise DdplintError(
                    f"the output has no {path!r}: {key!r} is not in {have}",
                    where="loss",
                    fix="give a dotted path into the output",
                ) from error
        return _scalar(value, f"output.{path}"), ""

    return take


def _stand_in(output: Any) -> tuple[torch.Tensor, str]:
    """Without a loss: the output's own ``.loss``, else a scalar output, else the sum of all floating outputs."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor) and own.numel() == 1:
        return own, "no loss given: the output's own .loss stands in"
    if isinstance(output, torch.Tensor) and output.numel() == 1:
        return output, "no loss given: the scalar output stands in"
    floating = [t for t in _each_once(output) if t.is_floating_point() and t.requires_grad]
    if not floating:
        raise DdplintError(
            "no output requires grad", where="loss", fix="give a loss(output), or check that the forward keeps gradients"
        )
    total = floating[0].sum()
    for tensor in floating[1:]:
        total = total + tensor.sum()
    return total, f"no loss given: the sum of all {len(floating)} floating outputs stands in"


def _each_once(value: Any) -> Iterator[torch.Tensor]:
    seen: set[int] = set()
    for tensor in tensors_in(value):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor
