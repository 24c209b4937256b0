"""The two-view message-passing transformer encoder.

One view passes messages between atoms (`node_blocks`), the other between directed bonds (`edge_blocks`).
Four readouts bring each view to atoms and to bonds.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, TypeAlias

import numpy
import torch
from torch import Tensor, nn

from ddplint.reference.molecules import ATOM_WIDTH, BOND_WIDTH, Batch

View: TypeAlias = Literal["atom", "bond"]

STANDARD_NORMAL = NormalDist()
DEPTH_SPREAD = 3
"""How far the drawn depth may lie from the configured one, in steps (and standard deviations)."""


@dataclass(frozen=True)
class EncoderConfig:
    """What an encoder is built from; `build` in finetune.py explains and checks the values."""

    hidden_size: int
    depth: int
    num_mt_block: int
    outputs: str
    dropout: float
    num_attn_head: int = 4
    strip: bool = False
    cuda: bool = False
    nvtx: bool = False


@dataclass(frozen=True)
class Embeddings:
    """The four readouts, `(1 + atoms, hidden_size)` or `(1 + bonds, hidden_size)`; None if not computed."""

    atom_from_atom: Tensor
    atom_from_bond: Tensor
    bond_from_atom: Tensor | None
    bond_from_bond: Tensor | None


def draw_depth(depth: int) -> int:
    """Draw a whole number from a normal around `depth`, of deviation 1, cut off `DEPTH_SPREAD` each way.

    The fraction is dropped. The one draw comes from numpy's global state, so `numpy.random.seed` fixes it.
    """
    tail = STANDARD_NORMAL.cdf(-DEPTH_SPREAD)
    return int(depth + STANDARD_NORMAL.inv_cdf(float(numpy.random.uniform(tail, 1 - tail))))


class MessagePassing(nn.Module):
    """Messages along the molecule's bonds: `(1 + items, hidden_size)` in and out, items being atoms or bonds.

    In training it draws its own depth; the loop runs one time less, so `W_h` may not be used at all.
    """

    def __init__(self, config: EncoderConfig, view: View) -> None:
        super().__init__()
        self.view = view
        self.depth = config.depth
        self.W_h = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.act_func = nn.PReLU()
        self.dropout_layer = nn.Dropout(config.dropout)

    def forward(self, items: Tensor, a2b: Tensor, b2a: Tensor, b2revb: Tensor, a2a: Tensor) -> Tensor:
        message = items
        depth = draw_depth(self.depth) if self.training else self.depth
        for _ in range(depth - 1):
            arrived = message[a2a if self.view == "atom" else a2b].sum(dim=1)
            if self.view == "bond":  # what arrives where the bond starts, without what came along the bond itself
                arrived = arrived[b2a] - message[b2revb]
            message = self.dropout_layer(self.act_func(items + self.W_h(arrived)))
        return message


class Head(nn.Module):
    """The query, key and value of one attention head, each by a message passing of its own."""

    def __init__(self, config: EncoderConfig, view: View) -> None:
        super().__init__()
        self.mpn_q = MessagePassing(config, view)
        self.mpn_k = MessagePassing(config, view)
        self.mpn_v = MessagePassing(config, view)

    def forward(self, items: Tensor, a2b: Tensor, b2a: Tensor, b2revb: Tensor, a2a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (
            self.mpn_q(items, a2b, b2a, b2revb, a2a),
            self.mpn_k(items, a2b, b2a, b2revb, a2a),
            self.mpn_v(items, a2b, b2a, b2revb, a2a),
        )


class MultiHeadAttention(nn.Module):
    """Scaled dot-product attention; query, key, value and result are `(items, length, hidden_size)`."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.num_attn_head = config.num_attn_head
        size = config.hidden_size
        self.linear_layers = nn.ModuleList(nn.Linear(size, size) for _ in range(3))
        self.output_linear = nn.Linear(size, size, bias=False)
        self.dropout_layer = nn.Dropout(config.dropout)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.num_attn_head, -1)).transpose(1, 2)
            for layer, x in zip(self.linear_layers, (query, key, value), strict=True)
        )
        weights = torch.softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, dim=-1)
        attended = self.dropout_layer(weights) @ v
        mixed: Tensor = self.output_linear(attended.transpose(1, 2).flatten(-2))
        return mixed


class Sublayer(nn.Module):
    """Layer norm and dropout over the last dimension."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size)
        self.dropout_layer = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.dropout_layer(self.norm(x))
        return normed


class Block(nn.Module):
    """One transformer block of one view: `(1 + items, input_size)` in, `(1 + items, hidden_size)` out.

    `W_i`, `layernorm` and `act_func` run only if the width of the input is not the hidden size yet; `strip`
    leaves them out where it is.
    """

    def __init__(self, config: EncoderConfig, view: View, input_size: int) -> None:
        super().__init__()
        hidden_size = config.hidden_size
        self.hidden_size = hidden_size
        self.input_size = input_size
        self.heads = nn.ModuleList(Head(config, view) for _ in range(config.num_attn_head))
        if input_size != hidden_size or not config.strip:
            self.W_i = nn.Linear(input_size, hidden_size, bias=False)
            self.layernorm = nn.LayerNorm(hidden_size)
            self.act_func = nn.PReLU()
        self.dropout_layer = nn.Dropout(config.dropout)
        self.attn = MultiHeadAttention(config)
        self.W_o = nn.Linear(config.num_attn_head * hidden_size, hidden_size, bias=False)
        self.sublayer = Sublayer(config)

    def forward(self, items: Tensor, a2b: Tensor, b2a: Tensor, b2revb: Tensor, a2a: Tensor) -> Tensor:
        if items.shape[1] != self.hidden_size:
            items = self.dropout_layer(self.layernorm(self.act_func(self.W_i(items))))
        heads = [head(items, a2b, b2a, b2revb, a2a) for head in self.heads]
        query, key, value = (torch.stack(part, dim=1) for part in zip(*heads, strict=True))
        attended = self.attn(query, key, value)
        out: Tensor = self.sublayer(self.W_o(attended.flatten(1)))
        return out


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, over the last dimension."""

    def __init__(self, config: EncoderConfig, input_size: int) -> None:
        super().__init__()
        self.W_1 = nn.Linear(input_size, 4 * config.hidden_size)
        self.act_func = nn.PReLU()
        self.dropout_layer = nn.Dropout(config.dropout)
        self.W_2 = nn.Linear(4 * config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.W_2(self.dropout_layer(self.act_func(self.W_1(x))))
        return out


class Encoder(nn.Module):
    """Blocks of both views, and the readouts to atoms and (unless stripped) to bonds.

    In: a batch as `batch_of` makes it. Out: `Embeddings`.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden_size = config.hidden_size
        self.cuda_batch = config.cuda
        self.nvtx = config.nvtx
        self.bonds_wanted = config.outputs == "both" and not config.strip
        bond_widths = [BOND_WIDTH] + [hidden_size] * (config.num_mt_block - 1)
        atom_widths = [ATOM_WIDTH] + [hidden_size] * (config.num_mt_block - 1)
        self.edge_blocks = nn.ModuleList(Block(config, "bond", width) for width in bond_widths)
        self.node_blocks = nn.ModuleList(Block(config, "atom", width) for width in atom_widths)
        self.ffn_atom_from_atom = FeedForward(config, hidden_size + ATOM_WIDTH)
        self.ffn_atom_from_bond = FeedForward(config, hidden_size + ATOM_WIDTH)
        self.atom_from_atom_sublayer = Sublayer(config)
        self.atom_from_bond_sublayer = Sublayer(config)
        if not config.strip:
            self.ffn_bond_from_atom = FeedForward(config, hidden_size + BOND_WIDTH)
            self.ffn_bond_from_bond = FeedForward(config, hidden_size + BOND_WIDTH)
            self.bond_from_atom_sublayer = Sublayer(config)
            self.bond_from_bond_sublayer = Sublayer(config)

    def forward(self, batch: Batch) -> Embeddings:
        atoms, bonds, a2b, b2a, b2revb, a2a, _, _ = batch
        if self.cuda_batch or next(self.parameters()).is_cuda:
            atoms, bonds = atoms.cuda(), bonds.cuda()
            a2b, b2a, b2revb, a2a = a2b.cuda(), b2a.cuda(), b2revb.cuda(), a2a.cuda()
        node, edge = atoms, bonds
        with self._range("node_blocks"):
            for block in self.node_blocks:
                node = block(node, a2b, b2a, b2revb, a2a)
        with self._range("edge_blocks"):
            for block in self.edge_blocks:
                edge = block(edge, a2b, b2a, b2revb, a2a)
        with self._range("atom readouts"):
            atom_from_atom = torch.cat([atoms, node[a2a].sum(dim=1)], dim=1)
            atom_from_atom = self.atom_from_atom_sublayer(self.ffn_atom_from_atom(atom_from_atom))
            atom_from_bond = torch.cat([atoms, edge[a2b].sum(dim=1)], dim=1)
            atom_from_bond = self.atom_from_bond_sublayer(self.ffn_atom_from_bond(atom_from_bond))
        if not self.bonds_wanted:
            return Embeddings(atom_from_atom, atom_from_bond, None, None)
        with self._range("bond readouts"):
            # The atom that a bond leaves and its neighbours, without the one at the bond's other end.
            around = node[b2a] + node[a2a].sum(dim=1)[b2a] - node[b2a[b2revb]]
            bond_from_atom = torch.cat([bonds, around], dim=1)
            bond_from_atom = self.bond_from_atom_sublayer(self.ffn_bond_from_atom(bond_from_atom))
            arrived = edge[a2b].sum(dim=1)[b2a] - edge[b2revb]
            bond_from_bond = torch.cat([bonds, arrived], dim=1)
            bond_from_bond = self.bond_from_bond_sublayer(self.ffn_bond_from_bond(bond_from_bond))
        return Embeddings(atom_from_atom, atom_from_bond, bond_from_atom, bond_from_bond)

    def _range(self, name: str) -> AbstractContextManager[None]:
        return torch.cuda.nvtx.range(name) if self.nvtx else nullcontext()


class MoleculeEmbedding(nn.Module):
    """The shared part of finetuning and pretraining: holds the encoder under the name `encoders`."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.encoders = Encoder(config)

    def forward(self, batch: Batch) -> Embeddings:
        embeddings: Embeddings = self.encoders(batch)
        return embeddings
