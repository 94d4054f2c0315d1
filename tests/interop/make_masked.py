"""Masked-language models of transformers, their SPLADE embeddings, and gradients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.interop.torch_models import (
    BERT,
    DISTILBERT,
    IDS,
    MASK,
    ROBERTA,
    Arrays,
    gradients,
    perturbed,
    weighted,
)

SHORT_IDS = np.array([[2, 7, 9, 3], [2, 30, 3, 0]])  # [CLS] w7 w9 [SEP], [CLS] w30 [SEP] [PAD]
SHORT_MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])


def masked(name: str, **changes: Any) -> Any:
    """A small masked-language model whose biases are not 0."""
    config = getattr(transformers, f"{name}Config")(**{**BERT, **changes})
    return perturbed(getattr(transformers, f"{name}ForMaskedLM")(config))


def distilbert() -> Any:
    settings = transformers.DistilBertConfig(**DISTILBERT)
    return perturbed(transformers.DistilBertForMaskedLM(settings))


MODELS: dict[str, Callable[[], Any]] = {
    "masked_bert": lambda: masked("Bert"),
    "masked_bert_tanh": lambda: masked("Bert", hidden_act="gelu_new", layer_norm_eps=1e-3),
    "masked_bert_untied": lambda: masked("Bert", tie_word_embeddings=False),
    "masked_roberta": lambda: masked("Roberta", **ROBERTA),
    "masked_roberta_relu": lambda: masked("Roberta", **ROBERTA, hidden_act="relu"),
    "masked_distilbert": distilbert,
    "masked_mpnet": lambda: masked("MPNet", max_position_embeddings=18, pad_token_id=1),
}


def splade(model: Any, ids: np.ndarray, mask: np.ndarray) -> Any:
    """[B, V]: log(1 + relu) of the largest logit among the tokens."""
    logits = model(torch.tensor(ids), attention_mask=torch.tensor(mask)).logits  # [B, L, V]
    values = torch.log1p(torch.relu(logits))
    return values.masked_fill(torch.tensor(mask)[:, :, None] == 0, 0.0).amax(1)


def language(name: str, folder: Path) -> Arrays:
    """A model's folder; its values for two sets of ids, and gradients of those of the first."""
    model = MODELS[name]()
    model.save_pretrained(folder)
    out = splade(model, IDS, MASK)
    loss, weights = weighted(out)
    loss.backward()
    short = splade(model, SHORT_IDS, SHORT_MASK).detach().numpy()
    found = {"ids": IDS, "mask": MASK, "out": out.detach().numpy(), "weights": weights}
    found |= {"short_ids": SHORT_IDS, "short_mask": SHORT_MASK, "short_out": short}
    return found | gradients(model)
