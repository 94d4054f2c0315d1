"""The recurrent text encoder: a GRU in each direction over word vectors."""

import torch
from torch import Tensor, nn


class GruTower(nn.Module):
    """Word ids -> one vector a text.

    Padding stands behind a text, so the forward GRU need not know of it, and the backward GRU gets
    every text turned round.

    Args:
      vocab_size: rows of the table of word vectors.
      words: numbers of a word vector.
      width: of the result, half of it from each direction.
      read: "last", the states at the last word, where the backward GRU has seen this word alone;
        or "mean" over the states at all words.
    """

    def __init__(self, vocab_size: int, words: int, width: int, read: str) -> None:
        super().__init__()
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, words))
        self.gru_forward = nn.GRU(words, width // 2, batch_first=True)
        self.gru_backward = nn.GRU(words, width // 2, batch_first=True)
        self.read = read

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Ids [B, L] and mask [B, L], true at words -> [B, 1, W]; 0 for a text without words."""
        x = self.token_embedding[ids]  # [B, L, words]
        lengths = mask.sum(1, keepdim=True)  # [B, 1]
        states, _ = self.gru_forward(x)  # [B, L, W / 2]
        if self.read == "mean":
            places = torch.arange(ids.shape[1], device=ids.device)  # [L]
            turned, _ = self.gru_backward(rows_at(x, (lengths - 1 - places).clamp(min=0)))
            share = mask / lengths.clamp(min=1)  # [B, L]
            return share[:, None] @ torch.cat([states, turned], -1)
        end = (lengths - 1).clamp(min=0)  # [B, 1]
        back, _ = self.gru_backward(rows_at(x, end))
        return torch.cat([rows_at(states, end), back], -1) * (lengths > 0)[..., None]


def rows_at(x: Tensor, places: Tensor) -> Tensor:
    """The vectors of x [B, L, W] at places [B, K], another choice in each row: [B, K, W]."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[2]))
