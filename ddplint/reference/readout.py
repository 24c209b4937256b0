"""From the rows of many atoms to one vector a molecule."""

import torch
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Attention of a few learned queries over the rows of one molecule.

    In: `(rows, in_size)`. Out: `(out_size, in_size)`, each row a weighted mean of the input's rows.
    """

    def __init__(self, in_size: int, hidden_size: int, out_size: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(hidden_size, in_size))
        self.w2 = nn.Parameter(torch.empty(out_size, hidden_size))
        nn.init.xavier_normal_(self.w1)
        nn.init.xavier_normal_(self.w2)

    def forward(self, rows: Tensor) -> Tensor:
        scores = self.w2 @ torch.tanh(self.w1 @ rows.T)
        return torch.softmax(scores, dim=-1) @ rows


class Readout(nn.Module):
    """One vector for each molecule, by self-attention or by the mean of its rows.

    In: embeddings `(1 + rows, in_size)` and a scope `(molecules, 2)` of start and length.
    Out: `(molecules, out_size)`; a molecule without rows takes `cached_zero_vector`, which is constant.

    Raises ValueError if `needs_rows` and every molecule is empty: such a batch has nothing to learn from.
    """

    def __init__(self, kind: str, in_size: int, *, needs_rows: bool = False) -> None:
        super().__init__()
        attention_size, queries = 4, 4
        self.needs_rows = needs_rows
        self.out_size = in_size * queries if kind == "self_attention" else in_size
        self.attn = SelfAttention(in_size, attention_size, queries) if kind == "self_attention" else None
        self.cached_zero_vector = nn.Parameter(torch.zeros(self.out_size), requires_grad=False)

    def forward(self, embeddings: Tensor, scope: Tensor) -> Tensor:
        vectors: list[Tensor] = []
        found = False
        for start, length in scope:
            if length == 0:
                vectors.append(self.cached_zero_vector)
                continue
            found = True
            rows = embeddings[start : start + length]
            vectors.append(rows.sum(dim=0) / length if self.attn is None else self.attn(rows).flatten())
        if self.needs_rows and not found:
            raise ValueError("every molecule of the batch is empty: give at least one with an atom")
        return torch.stack(vectors)
