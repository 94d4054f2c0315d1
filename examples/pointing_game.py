"""An evaluator of your own: does Grad-CAM point at the object that a text names?

    big-retrieval train --config=examples/pointing_game.py:runlocal

The energy-based pointing game (Wang et al., "Score-CAM", 2020): the share of a map's mass that lies
on the object. A generated scene has two objects, and where each lies is known. Asked are captions,
which name both objects, and texts that name one of them. A uniform map, with as much mass on every
pixel, is what to compare with: its share is that of the object's pixels.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from big_retrieval import config
from big_retrieval.config import recipe
from big_retrieval.data.fields.reader import stack
from big_retrieval.data.synthetic import scenes
from big_retrieval.errors import UserError

NAMED = {  # the words of a caption that say something of the scene
    *scenes.SHAPES, *scenes.COLOURS, *scenes.SIZES, *" ".join(scenes.RELATIONS).split(),
}  # fmt: skip


@config.register("evaluator")
@dataclass(frozen=True)
class PointingGame(config.Evaluator):
    """Shares of the mass of Grad-CAM's maps on named objects and words, beside uniform maps."""

    type: Literal["pointing_game"] = "pointing_game"
    data: config.Scenes = field(default_factory=lambda: config.Scenes(split="test", count=200))
    query: str = "text"
    document: str = "image"
    every: int | None = 0  # steps; None: config.eval_every; 0: at the end only

    def check(self, config: config.Config, path: str) -> Iterator[str]:
        """What is wrong with the keys, a sentence each."""
        size = getattr(config.fields[self.document], "size", self.data.size)
        if self.data.size != size:
            yield f"{path}.data.size is {self.data.size}; set it to that of the field, {size}."

    def reads(self) -> dict[str, str]:
        """The keys that name fields: whether these exist is checked elsewhere."""
        return {"query": self.query, "document": self.document}

    def check_data(self, context: Any) -> None:
        """Raises a UserError where the model has no Grad-CAM."""
        why = context.encoder.gradcam_obstacle(self.query, self.document)
        if why:
            raise UserError(why)

    def run(self, context: Any, weights: Any) -> dict[str, float]:
        """Means over scenes, of maps that are not 0 everywhere.

        Returns:
          `both`: of captions, the share of the map on both objects. `named`: of texts that name one
          object, the share on this object, and `other`: on the other one. `right`: how often the
          named one has more. `pairs_named` and `pairs_right`: the same for the maps of single pairs
          of class tokens, on average over the pairs; `pair_<j>_right` of each. `words`: of
          captions, the share of the words' relevance on sizes, colours, shapes and relations. Names
          with `_uniform` are of uniform maps. `empty`: how many maps are 0 everywhere.
        """
        source = context.source
        covers = np.stack([source.covers(i) for i in range(len(source))])  # [n, 2, S, S]
        captions = [source.texts(i, "captions")[0] for i in range(len(source))]
        found: dict[str, Any] = {}
        both = self._maps(context, weights, captions)
        found["both"], found["both_uniform"] = _share(both.image.whole, covers.sum(1))
        found["words"], found["words_uniform"] = self._words(context, captions, both.text.whole)
        single = [], [], [], []  # named and other, of whole maps and of pairs
        empty = [both.image.whole]
        for place in (0, 1):
            texts = [f"a {source.phrases(i)[place]}" for i in range(len(source))]
            maps = self._maps(context, weights, texts).image
            empty.append(maps.whole)
            for objects, which in enumerate((place, 1 - place)):
                cover = covers[:, which]
                single[objects].append(_on(maps.whole, cover))
                single[2 + objects].append(_on(maps.pairs, cover[:, None]))
        named, other = (np.concatenate(x) for x in single[:2])  # [2 n]
        pairs, pairs_other = (np.concatenate(x) for x in single[2:])  # [2 n, M]
        found |= {"named": np.nanmean(named), "other": np.nanmean(other)}
        found["named_uniform"] = covers.mean()
        found["right"] = _right(named, other)
        found |= {"pairs_named": np.nanmean(pairs), "pairs_right": _right(pairs, pairs_other)}
        for j in range(pairs.shape[1]):
            found[f"pair_{j + 1}_right"] = _right(pairs[:, j], pairs_other[:, j])
        found["empty"] = np.mean([x.max((-2, -1)) <= 0 for x in empty])
        return {name: float(value) for name, value in found.items()}

    def _maps(self, context: Any, weights: Any, texts: list[str]) -> Any:
        """Grad-CAM of text i with scene i."""
        source, readers = context.source, context.readers
        text, image = self.query, self.document
        pictures = [readers[image].value(source, i, 0) for i in range(len(source))]
        arrays = {text: stack(readers[text], texts), image: stack(readers[image], pictures)}
        return context.encoder.gradcam(weights, arrays, text, image).positive()

    def _words(
        self, context: Any, captions: list[str], relevance: np.ndarray
    ) -> tuple[float, float]:
        """The share of relevances [n, L] on words that describe the scene, and that of uniform
        ones."""
        reader = context.readers[self.query]
        tokenizer, arrays = reader.tokenizer, stack(reader, captions)
        length = relevance.shape[1]
        tokens = [[tokenizer.id_to_token(int(i)) for i in row[:length]] for row in arrays["ids"]]
        special = tokenizer.special_tokens
        words = np.array([[token not in special for token in row] for row in tokens])
        names = np.array([[token in NAMED for token in row] for row in tokens])
        mass = np.where(words, relevance, 0).sum(1)
        share = np.where(names, relevance, 0).sum(1) / np.where(mass > 0, mass, np.nan)
        return np.nanmean(share), np.mean(names.sum(1) / words.sum(1))


def _on(maps: np.ndarray, cover: np.ndarray) -> np.ndarray:
    """The share of the mass of maps [..., R, R] on what is covered; NaN of maps of 0.

    Args:
      maps: the mass of a patch is spread evenly over its pixels.
      cover: how much of each pixel, [..., S, S].
    """
    side, size = maps.shape[-1], cover.shape[-1]
    blocks = cover.reshape(*cover.shape[:-2], side, size // side, side, size // side)
    mass = maps.sum((-2, -1))
    on = (maps * blocks.mean((-3, -1))).sum((-2, -1))
    return on / np.where(mass > 0, mass, np.nan)


def _share(maps: np.ndarray, cover: np.ndarray) -> tuple[float, float]:
    """The mean share of maps [n, R, R] on what is covered, and that of uniform maps."""
    return float(np.nanmean(_on(maps, cover))), float(cover.mean())


def _right(named: np.ndarray, other: np.ndarray) -> float:
    """How often the named object has more of a map than the other one; maps of 0 do not count."""
    there = ~np.isnan(named)
    return float(np.mean((named > other)[there]))


def get_config(arg: str = "") -> recipe.Editable:
    """Four class tokens, patches of 4 pixels. Arguments: runlocal, steps (400), tokens (4)."""
    args = recipe.parse_arg(arg, steps=400, tokens=4)
    c = recipe.small()
    c.total_steps, c.topology = args.steps, "oblique"
    c.towers.image.patch = 4
    for name, tower in c.towers.items():
        tower.class_tokens = args.tokens
        c.fields[name].head.dim = 64 // args.tokens
    c.losses.main.logit_scale.init = 5.0
    c.evals.pointing = recipe.entry(PointingGame())
    return recipe.runlocal(c) if args.runlocal else c
