"""The vision transformer."""

import torch
from torch import nn

from big_retrieval.exporting.pytorch.blocks import Blocks, weigh_as_one


class VisionTransformer(nn.Module):
    """Images to class tokens, or to their patches."""

    def __init__(
        self,
        *,
        positions: int,  # class tokens and patches
        patch: int,  # side in pixels
        width: int,
        depth: int,
        heads: int,
        mlp: int,
        class_tokens: int = 1,
        pool: str = "first",  # "first": class tokens; "mean", "none": of patches
        norm_first: bool = True,  # before the first layer
        patch_bias: bool = False,
        tokens_as_one: bool = False,  # class tokens weigh as much as one
        activation: str = "gelu",
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.patch = patch
        self.class_tokens = class_tokens
        self.pool = pool
        self.tokens_as_one = tokens_as_one
        self.patch_embedding = nn.Linear(patch * patch * 3, width, bias=patch_bias)
        if class_tokens:
            self.class_embedding = nn.Parameter(torch.empty(class_tokens, width))
        self.position_embedding = nn.Parameter(torch.empty(positions, width))
        self.ln_pre = nn.LayerNorm(width, eps=epsilon) if norm_first else nn.Identity()
        self.layers = Blocks(depth, width, heads, mlp, "pre", activation, epsilon)
        self.ln_post = nn.LayerNorm(width, eps=epsilon)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normalized images [B, S, S, 3] -> [B, M, W]; [B, patches, W] if `pool` is "none"."""
        x = self.patch_embedding(patchify(images, self.patch))  # [B, patches, W]
        count = self.class_tokens
        if count:
            tokens = self.class_embedding.expand(x.shape[0], -1, -1)
            x = torch.cat([tokens, x], dim=1)  # [B, L, W]
        x = self.ln_pre(x + self.position_embedding)
        bias = None
        if self.tokens_as_one and count > 1:
            positions = torch.arange(x.shape[1], device=x.device)[None]
            bias = weigh_as_one(torch.where(positions < count, positions, -1), count)
        x = self.layers(x, bias)
        if self.pool == "first":
            return self.ln_post(x[:, :count])
        x = self.ln_post(x[:, count:])
        return x.mean(1, keepdim=True) if self.pool == "mean" else x


def patchify(images: torch.Tensor, patch: int) -> torch.Tensor:
    """[B, S, S, 3] -> [B, patches, P P 3], by row and column; within, by row, column, channel."""
    x = images.unflatten(2, (-1, patch)).unflatten(1, (-1, patch))  # [B, S/P, P, S/P, P, 3]
    return x.transpose(2, 3).flatten(3).flatten(1, 2)
