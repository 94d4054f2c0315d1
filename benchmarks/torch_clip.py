"""The peer of `benchmarks.train_step`: the same small CLIP and the same step in plain PyTorch.

Fused query-key-value products, `scaled_dot_product_attention`, a convolution for the patches,
clipping and AdamW over lists of tensors: what a careful PyTorch user would write. The parameters
are copied from ours. PyTorch is no dependency of the package, so it is imported when asked for.
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from big_retrieval.config import AdamW, Bert, Config, ImageField, ViT

Tree = Mapping[str, Any]


def available() -> bool:
    """Whether PyTorch is installed."""
    return importlib.util.find_spec("torch") is not None


def make_step(
    config: Config, params: Tree, arrays: Tree, threads: int, *, device: str = "cpu"
) -> tuple[Callable[[], float], str]:
    """The training step on one fixed batch.

    On "cuda" it is compiled by `torch.compile`, and bfloat16 products are PyTorch's autocast.

    Args:
      config: fields "image" and "text" with towers of their own, no dropout, one class token, a
        post-LN text tower, exact GELU, sphere topology, a constant learning rate.
      params: our initial parameters as numpy arrays.
      arrays: `pixels` uint8 [B, S, S, 3], `ids` int32 [B, L], `mask` bool [B, L].
      threads: CPU threads of PyTorch.
      device: "cpu" or "cuda".

    Returns:
      (a call that takes one step and returns the loss before it, PyTorch's version).
    """
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(threads)
    clip = _Clip(torch, config, params, device)
    pixels, mask, ids = (torch.tensor(arrays[n], device=device) for n in ("pixels", "mask", "ids"))
    ids, loss_of = ids.long(), torch.compile(clip.loss) if device == "cuda" else clip.loss
    half = torch.autocast(device, torch.bfloat16, enabled=config.dtype == "bfloat16")
    optimizer = _optimizer(torch, config, clip.weights)
    main: Any = config.losses["main"]
    bounds = main.logit_scale.min, main.logit_scale.max
    low, high = (None if x is None else float(np.log(x)) for x in bounds)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with half:
            loss = loss_of(pixels, ids, mask)
        loss.backward()
        if config.optimizer.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(
                list(clip.weights.values()), config.optimizer.clip_norm, foreach=True
            )
        optimizer.step()
        if low is not None or high is not None:
            with torch.no_grad():
                clip.weights["logit_scale"].clamp_(low, high)
        return float(loss.detach())

    return step, torch.__version__


def _optimizer(torch: Any, config: Config, weights: dict[str, Any]) -> Any:
    """AdamW with decay of matrices only; "fused" is as fast as "foreach" on CPUs."""
    c = config.optimizer
    kept = ("class_embedding", "position_embedding")
    decayed = [w for n, w in weights.items() if w.ndim >= 2 and not n.endswith(kept)]
    rest = [w for n, w in weights.items() if w.ndim < 2 or n.endswith(kept)]
    groups = [
        {"params": decayed, "weight_decay": c.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    rule = c.rule
    assert isinstance(rule, AdamW), rule
    return torch.optim.AdamW(groups, c.lr, (rule.b1, rule.b2), rule.eps, fused=True)


class _Clip:
    """Two towers, two projections and the logit scale.

    Attributes:
      weights: name -> leaf tensor that is trained.
    """

    def __init__(self, torch: Any, config: Config, params: Tree, device: str):
        self._torch, self._f, self._device = torch, torch.nn.functional, device
        vision, text = config.towers["image"], config.towers["text"]
        field = config.fields["image"]
        assert isinstance(vision, ViT)
        assert isinstance(text, Bert)
        assert isinstance(field, ImageField)
        assert (text.norm, vision.class_tokens, text.class_tokens) == ("post", 1, 1)
        self._vision, self._text = vision, text
        self._mean, self._std = (
            torch.tensor(x, device=device).view(1, 3, 1, 1) for x in (field.mean, field.std)
        )
        self.weights: dict[str, Any] = {}
        for side in ("image", "text"):
            self._take_tower(side, params[side])
            self._add(f"{side}/head", params[f"{side}_head"]["kernel"].T)
        kernel = params["image"]["patch_embedding"]["kernel"]  # [P*P*3, W]: row, column, channel
        kernel = kernel.reshape(vision.patch, vision.patch, 3, vision.width)
        self._add("image/patches", kernel.transpose(3, 2, 0, 1))  # [W, 3, P, P]
        self._add("logit_scale", params["scalars"]["main"]["logit_scale"])

    def _add(self, name: str, value: Any) -> None:
        value = self._torch.tensor(np.ascontiguousarray(value), device=self._device)
        self.weights[name] = value.reshape(value.shape).requires_grad_()

    def _take_tower(self, side: str, params: Tree) -> None:
        """Adds tables, norms and layers; query, key and value become one matrix."""
        for name, part in params.items():
            if name.startswith("layers_"):
                attention, mlp = part["attention"], part["mlp"]
                joined = [attention[n] for n in ("query", "key", "value")]
                prefix = f"{side}/{name}"
                self._add(f"{prefix}/qkv", np.concatenate([d["kernel"] for d in joined], 1).T)
                self._add(f"{prefix}/qkv_bias", np.concatenate([d["bias"] for d in joined]))
                dense = {"out": attention["out"], "fc1": mlp["fc1"], "fc2": mlp["fc2"]}
                for key, d in dense.items():
                    self._add(f"{prefix}/{key}", d["kernel"].T)
                    self._add(f"{prefix}/{key}_bias", d["bias"])
                for key in ("ln_1", "ln_2"):
                    self._add_norm(f"{prefix}/{key}", part[key])
            elif name.startswith("ln_"):
                self._add_norm(f"{side}/{name}", part)
            elif name != "patch_embedding":
                self._add(f"{side}/{name}", part)

    def _add_norm(self, name: str, part: Tree) -> None:
        self._add(name, part["scale"])
        self._add(f"{name}_bias", part["bias"])

    def loss(self, pixels: Any, ids: Any, mask: Any) -> Any:
        """Symmetric cross-entropy of the batch, []."""
        torch, f = self._torch, self._f
        images = f.normalize(self._linear(self._image(pixels), "image/head", bias=False), dim=-1)
        texts = f.normalize(self._linear(self._texts(ids, mask), "text/head", bias=False), dim=-1)
        logits = self.weights["logit_scale"].exp() * texts @ images.T  # [B, B]
        target = torch.arange(len(logits), device=logits.device)
        return 0.5 * (f.cross_entropy(logits, target) + f.cross_entropy(logits.T, target))

    def _image(self, pixels: Any) -> Any:
        """uint8 [B, S, S, 3] -> [B, W]."""
        x = (pixels.permute(0, 3, 1, 2).float() / 255 - self._mean) / self._std  # [B, 3, S, S]
        x = self._f.conv2d(x, self.weights["image/patches"], stride=self._vision.patch)
        x = x.flatten(2).transpose(1, 2)  # [B, L-1, W]
        first = self.weights["image/class_embedding"].expand(len(x), 1, -1)
        x = self._torch.cat([first, x], 1) + self.weights["image/position_embedding"]  # [B, L, W]
        x = self._norm(x, "image/ln_pre")
        for i in range(self._vision.depth):
            at = f"image/layers_{i}"
            normal = self._norm(x, f"{at}/ln_1")
            x = x + self._attention(normal, at, self._vision.heads, None)
            x = x + self._mlp(self._norm(x, f"{at}/ln_2"), at)
        return self._norm(x[:, 0], "image/ln_post")

    def _texts(self, ids: Any, mask: Any) -> Any:
        """[B, L] -> [B, W]."""
        x = self._f.embedding(ids, self.weights["text/token_embedding"])  # [B, L, W]
        x = x + self.weights["text/position_embedding"][: ids.shape[1]]
        x = self._norm(x, "text/ln_embedding")
        for i in range(self._text.depth):
            at = f"text/layers_{i}"
            attended = self._attention(x, at, self._text.heads, mask[:, None, None, :])
            x = self._norm(x + attended, f"{at}/ln_1")
            x = self._norm(x + self._mlp(x, at), f"{at}/ln_2")
        return self._norm(x[:, 0], "text/ln_final")

    def _attention(self, x: Any, at: str, heads: int, mask: Any) -> Any:
        """[B, L, W] -> [B, L, W]; mask [B, 1, 1, L]."""
        qkv = self._linear(x, f"{at}/qkv").view(*x.shape[:2], 3, heads, -1)  # [B, L, 3, H, d]
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # [B, H, L, d] each
        y = self._f.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self._linear(y.transpose(1, 2).reshape(x.shape), f"{at}/out")

    def _mlp(self, x: Any, at: str) -> Any:
        return self._linear(self._f.gelu(self._linear(x, f"{at}/fc1")), f"{at}/fc2")

    def _linear(self, x: Any, name: str, bias: bool = True) -> Any:
        return self._f.linear(x, self.weights[name], self.weights[f"{name}_bias"] if bias else None)

    def _norm(self, x: Any, name: str) -> Any:
        scale, bias = self.weights[name], self.weights[f"{name}_bias"]
        return self._f.layer_norm(x, scale.shape, scale, bias, 1e-5)
