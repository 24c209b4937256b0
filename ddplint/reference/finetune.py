"""The reference finetune model: `build`, `inputs`, `variants` and `loss` are what a rule file names."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddplint.reference.encoder import Block, Embeddings, EncoderConfig, MoleculeEmbedding
from ddplint.reference.molecules import EMPTY, MOLECULES, WATER, Batch, Molecule, batch_of
from ddplint.reference.pretraining import PartSizes, pretraining_parts
from ddplint.reference.readout import Readout

CHECKPOINTS = ("grover_base", "cmim", "hybrid", None)
OUTPUTS = ("both", "atom")
READOUTS = ("self_attention", "mean")
NUM_ATTN_HEAD = 4
DISTANCE_WEIGHT = 0.1

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


def task_head(in_size: int, hidden_size: int, dropout: float) -> nn.Sequential:
    """Three linear layers from vectors to one property, `(molecules, in_size)` to `(molecules, 1)`.

    The two hidden layers share one activation, so its parameter has two names.
    """
    act_func, dropout_layer = nn.PReLU(), nn.Dropout(dropout)
    return nn.Sequential(
        dropout_layer,
        nn.Linear(in_size, hidden_size),
        act_func,
        dropout_layer,
        nn.Linear(hidden_size, hidden_size),
        act_func,
        dropout_layer,
        nn.Linear(hidden_size, 1),
    )


class FinetuneModel(nn.Module):
    """Predicts a property of molecules from the two atom embeddings of the encoder `kermt`.

    In: a batch as `batch_of` makes it. Out: in training the predictions from atom messages and from bond
    messages, as a pair; in evaluation their mean; each `(molecules, 1)`.
    """

    def __init__(self, config: EncoderConfig, readout: str, checkpoint: str | None) -> None:
        super().__init__()
        # Before the latent distribution, which shares it: a parameter's first name is the one that counts.
        self.kermt = MoleculeEmbedding(config)
        self.readout = Readout(readout, config.hidden_size, needs_rows=True)
        self.mol_atom_from_atom_ffn = task_head(self.readout.out_size, config.hidden_size, config.dropout)
        self.mol_atom_from_bond_ffn = task_head(self.readout.out_size, config.hidden_size, config.dropout)
        self.pretraining_parts: tuple[str, ...] = ()
        if checkpoint is not None:
            sizes = PartSizes(config.hidden_size, readout, config.dropout)
            parts = pretraining_parts(checkpoint, self.kermt, sizes)
            for name, part in parts.items():
                self.add_module(name, part)
            self.pretraining_parts = tuple(parts)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor] | Tensor:
        *_, atom_scope, _ = batch
        embeddings: Embeddings = self.kermt(batch)
        from_bond: Tensor = self.mol_atom_from_bond_ffn(self.readout(embeddings.atom_from_bond, atom_scope))
        from_atom: Tensor = self.mol_atom_from_atom_ffn(self.readout(embeddings.atom_from_atom, atom_scope))
        if self.training:
            return from_atom, from_bond
        return (from_atom + from_bond) / 2


def unused_modules(model: FinetuneModel) -> dict[str, nn.Module]:
    """The modules whose parameters finetuning never uses, by name.

    They are the bond readouts, the input layers of blocks whose input has the hidden size already, and the
    pretraining parts without the shared encoder.
    """
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        parent, _, own = name.rpartition(".")
        if parent == "kermt.encoders" and own.startswith(("ffn_bond_from_", "bond_from_")):
            found[name] = module
        if isinstance(module, Block) and module.input_size == module.hidden_size:
            layers = ("W_i", "layernorm", "act_func")
            found |= {f"{name}.{layer}": child for layer, child in module.named_children() if layer in layers}
    for name in model.pretraining_parts:
        part = model.get_submodule(name)
        if "kermt" in dict(part.named_children()):
            found |= {f"{name}.{own}": child for own, child in part.named_children() if own != "kermt"}
        else:
            found[name] = part
    return found


def _choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in allowed):
        *most, last = (repr(choice) for choice in allowed)
        raise ValueError(f"{name} must be {', '.join(most)} or {last}, not {value!r}")


def _whole_number(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")


def build(
    checkpoint: str | None = "hybrid",
    retain_pretraining_heads: bool = True,
    depth: int = 6,
    num_mt_block: int = 1,
    outputs: str = "both",
    readout: str = "self_attention",
    freeze: bool = False,
    strip: bool = False,
    hidden_size: int = 12,
    dropout: float = 0.1,
    cuda: bool = False,
    nvtx: bool = False,
    seed: int = 0,
) -> FinetuneModel:
    """Build the finetune model of a checkpoint type, in training mode, with fresh weights.

    - checkpoint: "grover_base", "cmim", "hybrid", or None for a model without a checkpoint.
    - retain_pretraining_heads: keep the checkpoint's pretraining parts in the model.
    - depth: message passing steps, around which each message passing draws its own in training; at least 1.
    - num_mt_block: transformer blocks of each view; at least 1.
    - outputs: "both" computes the bond readouts and drops them, "atom" never calls them.
    - readout: "self_attention" or "mean".
    - freeze: set `requires_grad` to False on every parameter that finetuning never uses.
    - strip: leave those parameters out of the model; not together with `freeze`.
    - hidden_size: a multiple of 4, the number of attention heads.
    - dropout: a probability, at least 0 and below 1.
    - cuda: have the encoder move each batch to the GPU.
    - nvtx: mark the encoder's stages for a profiler; needs CUDA.
    - seed: of the weights; torch's global random state stays as it is.

    Raises ValueError that names the argument and what it may be.
    """
    _choice("checkpoint", checkpoint, CHECKPOINTS)
    _choice("outputs", outputs, OUTPUTS)
    _choice("readout", readout, READOUTS)
    flags = {"retain_pretraining_heads": retain_pretraining_heads, "freeze": freeze, "strip": strip}
    for name, value in {**flags, "cuda": cuda, "nvtx": nvtx}.items():
        _choice(name, value, (True, False))
    _whole_number("depth", depth, 1)
    _whole_number("num_mt_block", num_mt_block, 1)
    _whole_number("hidden_size", hidden_size, NUM_ATTN_HEAD)
    _whole_number("seed", seed, 0)
    if hidden_size % NUM_ATTN_HEAD:
        raise ValueError(f"hidden_size must be a multiple of {NUM_ATTN_HEAD}, not {hidden_size}")
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ValueError(f"dropout must be a number of at least 0 and below 1, not {dropout!r}")
    if freeze and strip:
        raise ValueError("freeze and strip must not both be True: a stripped model has nothing left to freeze")

    config = EncoderConfig(
        hidden_size=hidden_size,
        depth=depth,
        num_mt_block=num_mt_block,
        outputs=outputs,
        dropout=dropout,
        num_attn_head=NUM_ATTN_HEAD,
        strip=strip,
        cuda=cuda,
        nvtx=nvtx,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = FinetuneModel(config, readout, checkpoint if retain_pretraining_heads and not strip else None)
    if freeze:
        for module in unused_modules(model).values():
            module.requires_grad_(False)
    return model.train()


def _arguments(*molecules: Molecule) -> Arguments:
    return (batch_of(molecules),), {}


def inputs() -> Arguments:
    """The example molecules as one batch: positional and keyword arguments of `FinetuneModel.forward`."""
    return _arguments(*MOLECULES)


def variants() -> list[Callable[[], Arguments]]:
    """Further inputs: two molecules and an empty one, a molecule of one atom, a molecule with bonds."""
    return [
        lambda: _arguments(MOLECULES[0], EMPTY, MOLECULES[1]),
        lambda: _arguments(WATER),
        lambda: _arguments(MOLECULES[2]),
    ]


def loss(output: tuple[Tensor, Tensor] | Tensor) -> Tensor:
    """The squared error of the predictions and, in training, the distance between the two: a scalar.

    The targets are made up: evenly spread from -1 to 1 over the batch.
    """
    predictions = output if isinstance(output, tuple) else (output,)
    target = torch.linspace(-1.0, 1.0, len(predictions[0]), device=predictions[0].device).unsqueeze(1)
    error = torch.stack([functional.mse_loss(prediction, target) for prediction in predictions]).sum()
    if len(predictions) == 1:
        return error
    return error + DISTANCE_WEIGHT * functional.mse_loss(*predictions)
