"""The recurrent text encoder."""

import torch
import torch.nn.functional as F
from torch import nn

from big_retrieval.exporting.pytorch.blocks import mean_of_positions


class RecurrentText(nn.Module):
    """Word ids to one vector per text, by a GRU in each direction.

    Padding follows a text, so the forward GRU can ignore it. The backward GRU gets each text in
    reverse order.

    Args:
      words: dimensions of a word vector.
      read: "last" for the states at the last word, where the backward GRU has read only this word;
        "mean" for the mean of the states at all words.
    """

    def __init__(self, *, vocab_size: int, words: int, width: int, read: str = "last") -> None:
        super().__init__()
        self.read = read
        self.token_embedding = nn.Parameter(torch.empty(vocab_size, words))
        self.gru_forward = nn.GRU(words, width // 2, batch_first=True)
        self.gru_backward = nn.GRU(words, width // 2, batch_first=True)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids [B, L] and mask [B, L], true at words -> [B, 1, W]; 0 for a text without words."""
        x = F.embedding(ids, self.token_embedding)  # [B, L, words]
        lengths = mask.sum(1, keepdim=True)  # [B, 1]
        ahead, _ = self.gru_forward(x)  # [B, L, W / 2]
        if self.read == "mean":
            order = torch.arange(ids.shape[1], device=ids.device)
            back, _ = self.gru_backward(rows_at(x, (lengths - 1 - order).clamp(min=0)))
            return mean_of_positions(torch.cat([ahead, back], dim=-1), mask)
        last = (lengths - 1).clamp(min=0)  # [B, 1]
        back, _ = self.gru_backward(rows_at(x, last))
        return torch.cat([rows_at(ahead, last), back], dim=-1) * (lengths > 0)[:, :, None]


def rows_at(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Returns the vectors of x [B, L, W] at indices [B, K] of each row: [B, K, W]."""
    return x.gather(1, indices[:, :, None].expand(-1, -1, x.shape[2]))
