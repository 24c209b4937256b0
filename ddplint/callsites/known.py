"""The callables that wrap a model in DDP, or say how it will be wrapped: their names, flags, positions, defaults."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ddplint.callsites.model import Form, Setting

FLAG, STATIC_GRAPH = "find_unused_parameters", "static_graph"
OFF = Setting("off")

# DistributedDataParallel.__init__ in torch/nn/parallel/distributed.py, torch 2.13, if that file is not there to be read.
_TORCH_POSITIONS = {FLAG: 8, STATIC_GRAPH: 11}
# The fields of DistributedDataParallelKwargs, accelerate/utils/dataclasses.py, unchanged since 0.20.
_ACCELERATE_POSITIONS = {FLAG: 3, STATIC_GRAPH: 6}

_TRAINER_DECIDES = Setting("conditional", "not given: the Trainer has it on, unless gradients are checkpointed")
SUBCLASS_DECIDES = Setting("unknown", "not given: its class decides")

STRATEGY_NAMES = ("ddp", "ddp_spawn", "ddp_fork", "ddp_notebook")
ON_SUFFIX, OFF_SUFFIX = "_find_unused_parameters_true", "_find_unused_parameters_false"

LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")
_MM = ("mmcv", "mmengine", "mmdet", "mmdet3d", "mmseg", "mmaction", "mmcls", "mmpose", "mmocr")
_TRL = (
    *("BCOConfig", "CPOConfig", "DPOConfig", "GKDConfig", "GRPOConfig", "KTOConfig", "ORPOConfig", "OnlineDPOConfig"),
    *("PPOConfig", "PRMConfig", "RLOOConfig", "RewardConfig", "SFTConfig", "XPOConfig"),
)
_OTHER_CLASSES = ("apex", "bagua", "jittor", "megatron", "mindspore", "mindtorch", "oneflow", "paddle", "torch_xla")
"""Packages with a class of that name which is not torch's."""


@dataclass(frozen=True, slots=True)
class Callee:
    """One of them, by DDP's flags: each one's keyword in ``names`` (none: it can't be given), its position, from 0,
    if it has one, and what holds where it is not given (off, if nothing is said)."""

    form: Form
    positions: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=lambda: {FLAG: FLAG, STATIC_GRAPH: STATIC_GRAPH})
    defaults: Mapping[str, Setting] = field(default_factory=dict)

    def default(self, flag: str) -> Setting:
        """What holds where ``flag`` is not given."""
        return self.defaults.get(flag, OFF)


_ARGUMENT_NAMES = {FLAG: "ddp_find_unused_parameters", STATIC_GRAPH: "ddp_static_graph"}
TRAINING_ARGUMENTS = Callee("training-arguments", names=_ARGUMENT_NAMES, defaults={FLAG: _TRAINER_DECIDES})


def callee(origin: str) -> Callee | None:
    """What the dotted name ``origin`` ("torch.nn.parallel.DistributedDataParallel") is; None for any other callable."""
    root, last = origin.partition(".")[0], origin.rpartition(".")[2]
    if root == "torch" and last in ("DistributedDataParallel", "DistributedDataParallelCPU"):
        return Callee("call", torch_positions()) if origin.startswith("torch.nn.parallel") else None
    if root == "accelerate" and last == "DistributedDataParallelKwargs":
        return Callee("accelerate", _ACCELERATE_POSITIONS)
    if root in LIGHTNING and last in ("DDPStrategy", "DDPPlugin", "DDPSpawnStrategy", "DDPSpawnPlugin"):
        return Callee("lightning", defaults={FLAG: lightning_default(root, last)})
    if (root == "transformers" and last.endswith("TrainingArguments")) or (root == "trl" and last in _TRL):
        return TRAINING_ARGUMENTS
    if last in ("MMDistributedDataParallel", "MMSeparateDistributedDataParallel") and root in _MM:
        return Callee("subclass")
    if last.endswith("DistributedDataParallel") and last != "DistributedDataParallel" and root not in _OTHER_CLASSES:
        return Callee("subclass", defaults={FLAG: SUBCLASS_DECIDES, STATIC_GRAPH: SUBCLASS_DECIDES})
    return None


def takes_strategy(origin: str) -> str:
    """Whether ``origin`` is Lightning's Trainer or Fabric: "Trainer", "Fabric" or ""."""
    root, last = origin.partition(".")[0], origin.rpartition(".")[2]
    return last if root in LIGHTNING and last in ("Trainer", "Fabric") else ""


def strategy(name: str, *, fabric: bool = False, package: str = "lightning") -> Setting | None:
    """What Lightning's strategy ``name`` says of the flag; None if it is not one of DDP's.

    The names are those of ``DDPStrategy.register_strategies``, lightning/pytorch/strategies/ddp.py.
    """
    for suffix, state in ((ON_SUFFIX, "on"), (OFF_SUFFIX, "off")):
        if name.removesuffix(suffix) in STRATEGY_NAMES and name.endswith(suffix):
            return Setting("on" if state == "on" else "off", name)
    if name not in STRATEGY_NAMES:
        return None
    default = OFF if fabric else lightning_default(package, "DDPStrategy")
    return Setting(default.state, name)


def strategy_off(name: str, *, fabric: bool) -> str:
    """The name that turns the flag of the strategy ``name`` off.

    The Trainer knows ``…_false`` in all its versions; Fabric does not, and has the flag off under the plain name
    (lightning/fabric/strategies/ddp.py).
    """
    return name.removesuffix(ON_SUFFIX) + ("" if fabric else OFF_SUFFIX)


def lightning_default(package: str, name: str) -> Setting:
    """The flag where a strategy does not name it: on before Lightning 2.0, off since.

    ``lightning_fabric`` never turned it on. Without the package there is no telling.
    """
    if package == "lightning_fabric":
        return OFF
    if name.endswith("Plugin"):  # gone since 2.0
        return Setting("on", "not given: on before Lightning 2.0", kept="it is not given")
    version = _version(package)
    if version is None:
        return Setting("unknown", "not given: off since Lightning 2.0, on before")
    if int(version.partition(".")[0]) >= 2:
        return OFF
    return Setting("on", "not given: on before Lightning 2.0", kept="it is not given")


@functools.lru_cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def torch_positions() -> Mapping[str, int]:
    """Where the flags stand among DistributedDataParallel's positional arguments, by the source of the installed torch."""
    spec = importlib.util.find_spec("torch")  # of a package at the top, which does not import it
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        try:
            tree = ast.parse((Path(folder) / "nn" / "parallel" / "distributed.py").read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        found = positions(tree, "DistributedDataParallel")
        if FLAG in found:
            return found
    return _TORCH_POSITIONS


def positions(tree: ast.Module, name: str) -> dict[str, int]:
    """The position, from 0 and without ``self``, of each flag in ``__init__`` of the class ``name``."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                    return flag_positions(member)
    return {}


def flag_positions(function: ast.FunctionDef) -> dict[str, int]:
    """The position of each flag among the parameters of a method."""
    given = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)][1:]
    return {flag: given.index(flag) for flag in (FLAG, STATIC_GRAPH) if flag in given}
