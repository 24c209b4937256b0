"""The parts that a pretraining checkpoint brings along, and the objectives that train them.

Finetuning calls none of them; `pretraining_loss` does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddplint.reference import labels
from ddplint.reference.encoder import Embeddings, MoleculeEmbedding
from ddplint.reference.molecules import FUNCTIONAL_GROUPS, Batch, Molecule, batch_of
from ddplint.reference.readout import Readout

VIEWS = ("atom_from_atom", "atom_from_bond", "bond_from_atom", "bond_from_bond")


class AtomVocabularyHead(nn.Module):
    """Logits of each atom's word: `(1 + atoms, hidden_size)` to `(1 + atoms, words)`."""

    def __init__(self, hidden_size: int, words: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, words)

    def forward(self, atoms: Tensor) -> Tensor:
        logits: Tensor = self.linear(atoms)
        return logits


class BondVocabularyHead(nn.Module):
    """Logits of the word of a bond and its reverse: `(1 + bonds, hidden_size)` to `(pairs, words)`."""

    def __init__(self, hidden_size: int, words: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, words)
        self.linear_rev = nn.Linear(hidden_size, words)

    def forward(self, bonds: Tensor) -> Tensor:
        logits: Tensor = self.linear(bonds[1::2]) + self.linear_rev(bonds[2::2])
        return logits


class FunctionalGroupHead(nn.Module):
    """Logits of each functional group, `(molecules, groups)`, from each embedding that there is."""

    def __init__(self, hidden_size: int, groups: int) -> None:
        super().__init__()
        self.readout = Readout("mean", hidden_size)
        self.linear_atom_from_atom = nn.Linear(hidden_size, groups)
        self.linear_atom_from_bond = nn.Linear(hidden_size, groups)
        self.linear_bond_from_atom = nn.Linear(hidden_size, groups)
        self.linear_bond_from_bond = nn.Linear(hidden_size, groups)

    def forward(self, embeddings: Embeddings, atom_scope: Tensor, bond_scope: Tensor) -> dict[str, Tensor]:
        logits = {}
        for view in VIEWS:
            rows = getattr(embeddings, view)
            if rows is not None:
                scope = atom_scope if view.startswith("atom") else bond_scope
                logits[view] = self.get_submodule(f"linear_{view}")(self.readout(rows, scope))
        return logits


def vocabulary_heads(hidden_size: int) -> dict[str, nn.Module]:
    """The five heads of vocabulary pretraining, by the names they have in a checkpoint."""
    return {
        "av_task_atom": AtomVocabularyHead(hidden_size, len(labels.ATOM_VOCABULARY)),
        "av_task_bond": AtomVocabularyHead(hidden_size, len(labels.ATOM_VOCABULARY)),
        "bv_task_atom": BondVocabularyHead(hidden_size, len(labels.BOND_VOCABULARY)),
        "bv_task_bond": BondVocabularyHead(hidden_size, len(labels.BOND_VOCABULARY)),
        "fg_task_all": FunctionalGroupHead(hidden_size, len(FUNCTIONAL_GROUPS)),
    }


class LatentDistribution(nn.Module):
    """A normal distribution over latent vectors for each molecule, read from the shared encoder `kermt`.

    In: a batch. Out: its mean and the logarithm of its deviation, each `(molecules, latent_dim)`.
    """

    def __init__(self, kermt: MoleculeEmbedding, readout: str, hidden_size: int, latent_dim: int) -> None:
        super().__init__()
        self.kermt = kermt
        self.readout = Readout(readout, hidden_size)
        self.fc_mean_logscale = nn.Linear(self.readout.out_size, 2 * latent_dim)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        *_, atom_scope, bond_scope = batch
        embeddings: Embeddings = self.kermt(batch)
        vectors = [
            self.readout(rows, atom_scope if view.startswith("atom") else bond_scope)
            for view in VIEWS
            if (rows := getattr(embeddings, view)) is not None
        ]
        mean, log_scale = self.fc_mean_logscale(torch.stack(vectors).mean(dim=0)).chunk(2, dim=-1)
        return mean, log_scale.clamp(-6.0, 2.0)


class SmilesDecoder(nn.Module):
    """Writes a molecule's SMILES from its latent vector, one token after the other.

    In: tokens `(molecules, length)` and latent vectors `(molecules, latent_dim)`. Out: logits of the token
    that comes next, `(molecules, length, tokens)`.
    """

    def __init__(self, latent_dim: int, dropout: float) -> None:
        super().__init__()
        layers, heads = 2, 4
        tokens = len(labels.SMILES_VOCABULARY)
        self.token_embedding = nn.Embedding(tokens, latent_dim, padding_idx=labels.PAD)
        self.position_embedding = nn.Embedding(labels.MAX_TOKENS, latent_dim)
        self.decoder_layers = nn.ModuleList(
            nn.TransformerDecoderLayer(latent_dim, heads, 2 * latent_dim, dropout, batch_first=True) for _ in range(layers)
        )
        self.output_projection = nn.Linear(latent_dim, tokens)

    def forward(self, tokens: Tensor, latent: Tensor) -> Tensor:
        length = tokens.shape[1]
        position = torch.arange(length, device=tokens.device)
        later = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        hidden = self.token_embedding(tokens) + self.position_embedding(position)
        for layer in self.decoder_layers:
            # Padding comes last, so the causal mask alone keeps it from every real token.
            hidden = layer(hidden, latent.unsqueeze(1), tgt_mask=later)
        logits: Tensor = self.output_projection(hidden)
        return logits


@dataclass(frozen=True)
class PartSizes:
    """What the pretraining parts are built from; `build` in finetune.py explains and checks the values."""

    hidden_size: int
    readout: str
    dropout: float


def pretraining_parts(checkpoint: str, kermt: MoleculeEmbedding, sizes: PartSizes) -> dict[str, nn.Module]:
    """The modules that a checkpoint of this type brings beside the encoder, by their names in the model.

    `checkpoint` is "grover_base", "cmim" or "hybrid". A latent distribution holds `kermt` itself, not a copy.
    """
    heads = vocabulary_heads(sizes.hidden_size)
    if checkpoint == "grover_base":
        return heads
    parts: dict[str, nn.Module] = {
        "latent_dist": LatentDistribution(kermt, sizes.readout, sizes.hidden_size, sizes.hidden_size),
        "decoder": SmilesDecoder(sizes.hidden_size, sizes.dropout),
    }
    if checkpoint == "hybrid":
        parts["vocab_module"] = nn.ModuleDict(heads)
    return parts


def vocabulary_loss(heads: Mapping[str, nn.Module], embeddings: Embeddings, molecules: Sequence[Molecule]) -> Tensor:
    """The cross entropies of atom words, bond words and functional groups, summed over views: a scalar."""
    *_, atom_scope, bond_scope = batch_of(molecules)
    atoms, bonds = labels.atom_labels(molecules), labels.bond_labels(molecules)
    predictions = [
        (heads["av_task_atom"], embeddings.atom_from_atom, atoms),
        (heads["av_task_bond"], embeddings.atom_from_bond, atoms),
        (heads["bv_task_atom"], embeddings.bond_from_atom, bonds),
        (heads["bv_task_bond"], embeddings.bond_from_bond, bonds),
    ]
    terms = [
        functional.cross_entropy(head(rows), words, ignore_index=labels.IGNORED)
        for head, rows, words in predictions
        if rows is not None and len(words)
    ]
    groups = labels.functional_group_labels(molecules)
    logits = heads["fg_task_all"](embeddings, atom_scope, bond_scope).values()
    terms += [functional.binary_cross_entropy_with_logits(view, groups) for view in logits]
    return torch.stack(terms).sum()


def mutual_information_loss(mean: Tensor, log_scale: Tensor, latent: Tensor) -> Tensor:
    """The contrastive mutual-information objective of latent vectors drawn from a normal: a scalar.

    Minus the log probability of telling a molecule's vector from the others' by their cosine, minus half the
    log densities (a mean over the latent dimensions, up to constants) under the molecule's own normal and
    under the standard one.
    """
    molecules = len(latent)
    temperature = 0.1
    direction = functional.normalize(latent, dim=-1)
    # Weigh the others down to one competitor, so that the term does not depend on the size of the batch.
    others = torch.full((molecules, molecules), -math.log(max(1, molecules - 1)), device=latent.device)
    cosine = direction @ direction.T / temperature + others.fill_diagonal_(0.0)
    same = functional.cross_entropy(cosine, torch.arange(molecules, device=latent.device))
    own = (-log_scale - 0.5 * ((latent - mean) / log_scale.exp()).square()).mean()
    standard = (-0.5 * latent.square()).mean()
    return same - 0.5 * (own + standard)


def reconstruction_loss(decoder: nn.Module, latent: Tensor, molecules: Sequence[Molecule]) -> Tensor:
    """The cross entropy of each SMILES token, given those before it and the latent vector: a scalar."""
    tokens = labels.smiles_tokens(molecules)
    logits: Tensor = decoder(tokens[:, :-1], latent)
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=labels.PAD)


def pretraining_loss(model: nn.Module, molecules: Sequence[Molecule]) -> Tensor:
    """The objective of the pretraining parts that a model carries, on a batch of molecules: a scalar.

    Raises ValueError if it carries none.
    """
    parts = dict(model.named_children())
    heads = parts.get("vocab_module", model if "fg_task_all" in parts else None)
    batch = batch_of(molecules)
    terms = []
    if "latent_dist" in parts:
        mean, log_scale = parts["latent_dist"](batch)
        latent = mean + log_scale.exp() * torch.randn_like(mean)
        terms.append(mutual_information_loss(mean, log_scale, latent))
        terms.append(reconstruction_loss(parts["decoder"], latent, molecules))
    if heads is not None:
        terms.append(vocabulary_loss(dict(heads.named_children()), parts["kermt"](batch), molecules))
    if not terms:
        raise ValueError("the model carries no pretraining part: build it with a checkpoint, not stripped")
    return torch.stack(terms).sum()
