"""The model: computes embeddings of every field by its tower and head."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from big_retrieval.batch import Reps
from big_retrieval.config import Config, Field, Tower
from big_retrieval.config.topologies import TopologyKey, topology_part
from big_retrieval.models.batch_norm import counting
from big_retrieval.models.flops import by_depth, traced_flops, without_kernels
from big_retrieval.sparse.terms import Terms, Words, terms_of, terms_of_size

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


class RetrievalModel(nn.Module):
    """Towers (parameters `image/...`) and heads (`image_head/...`) of all fields."""

    towers: Mapping[str, Tower]  # configs by name
    fields: Mapping[str, Field]
    topology: TopologyKey
    vocab_size: int  # rows of the text towers' word tables, unless their config sets it
    # field that owns a lexical head -> word pieces that are the terms of the head
    terms: Mapping[str, Terms] = dataclasses.field(default_factory=dict)
    dtype: Any = jnp.float32  # of the computations; parameters are float32
    keep_raw: bool = False  # return raw embeddings, for losses with another topology than the run
    keep_vectors: tuple[str, ...] = ()  # fields whose tower vectors are returned, for losses

    def __hash__(self) -> int:
        parts = (self.towers, self.fields, self.terms)  # dictionaries; `_flops` caches by this hash
        return hash((*(tuple(part.items()) for part in parts), self.topology, self.vocab_size))

    @nn.compact
    def __call__(
        self,
        inputs: Mapping[str, Mapping[str, jax.Array]],
        *,
        train: bool = False,
        rows: jax.Array | None = None,
    ) -> Reps:
        """Encodes the given fields, of one side or of both.

        Args:
          inputs: field name -> arrays, as in `Batch.fields`.
          train: turns dropout on; batch norms use the statistics of the batch.
          rows: int32 [B], indices of the rows in the global batch, for their random bits; None for
            0 to B - 1.

        Returns:
          Embeddings [B, M, N], float32, of every given field. Lexical fields have [B, 1, V], and
            their texts `bow` (term ids).
        """
        run, products = topology_part(self.topology), topology_part("inner")
        towers = {
            name: tower.build(
                self.vocab_size,
                [field for field in self.fields.values() if field.tower == name],
                dtype=self.dtype,
                name=name,
            )
            for name, tower in self.towers.items()
        }
        heads: dict[str, Any] = {}
        embeddings, bow, raws, passes, vectors = {}, {}, {}, {}, {}
        for name in sorted(inputs.keys() & self.fields.keys()):  # only losses read targets
            field, arrays = self.fields[name], inputs[name]
            tower: Any = towers[field.tower]
            # An evaluation encodes one field at a time, so the other field may be missing.
            source = field.same_input_as if field.same_input_as in inputs else name
            if source not in passes:
                operands = self.fields[source].inputs(inputs[source], self.dtype)
                with counting(inputs[source].get("present")):
                    passes[source] = tower(*operands, train=train, rows=rows)
            tokens = passes[source]  # [B, M, D]
            vectors |= {name: tokens} if name in self.keep_vectors else {}
            owner = field.shares_head or name
            if owner not in heads:
                config, terms = self.fields[owner].head, self.terms.get(owner)
                heads[owner] = config.build(terms, dtype=self.dtype, name=f"{owner}_head")
            call: dict[str, Any] = {"field": name, "train": train, "rows": rows}
            with counting(arrays.get("present")):
                raw = field.head.embed(heads[owner], tower, tokens, arrays, **call)  # [B, M, N]
            embeddings[name] = (products if field.head.lexical else run).project(raw)
            raws |= {name: raw} if self.keep_raw else {}
            if owner in self.terms and "ids" in arrays:
                table = jnp.asarray(self.terms[owner].table)
                bow[name] = jnp.where(arrays["mask"], table[arrays["ids"]], -1)  # [B, L]
        return Reps(embeddings=embeddings, bow=bow, raw=raws, vectors=vectors)

    @nn.nowrap
    def forward_flops(self) -> int:
        """Returns the operations of a forward pass of one row, all fields (see `traced_flops`)."""
        return sum(self.field_flops(name) for name in self.fields)

    @nn.nowrap
    def field_flops(self, name: str, *, backward: bool = False) -> int:
        """Returns the operations of a field's tower (unless shared) and head, for one row."""
        tower_name, source = self.fields[name].tower, self.fields[name].same_input_as

        def count(tower: Tower) -> int:
            model = self.clone(towers={**self.towers, tower_name: without_kernels(tower)})
            if source:
                return _flops(model, (source, name), backward) - _flops(model, (source,), backward)
            return _flops(model, (name,), backward)

        return by_depth(self.towers[tower_name], count)

    @nn.nowrap
    def example_inputs(self) -> dict[str, dict[str, jax.Array]]:
        """Returns inputs of one row, to draw parameters."""
        return example_row(self.fields)


def example_row(fields: Mapping[str, Field]) -> dict[str, dict[str, jax.Array]]:
    """Returns arrays of one row of the given fields, all ones, without `present`."""
    return {
        name: {key: jnp.ones((1, *shape), dtype) for key, (shape, dtype) in field.shapes().items()}
        for name, field in fields.items()
    }


@functools.lru_cache(maxsize=64)
def _flops(model: RetrievalModel, names: tuple[str, ...], backward: bool) -> int:
    inputs = {name: model.example_inputs()[name] for name in names}
    # Unboxed while traced: under a mesh, `unbox` constrains shardings, which needs arrays.
    drawn = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), inputs)))
    params, stats = drawn.pop("params"), drawn

    def value(params: Any, stats: Any) -> jax.Array:
        rngs = {"dropout": jax.random.key(0)}
        reps: Any = model.apply({"params": params, **stats}, inputs, train=backward, rngs=rngs)
        return sum((jnp.sum(reps.embeddings[name]) for name in names), jnp.zeros(()))

    return traced_flops(jax.value_and_grad(value) if backward else value, params, stats)


def make_model(config: Config, vocab_size: int, words: Words | None = None) -> RetrievalModel:
    """Returns the model of a checked config; without `words`, only the number of terms is right."""
    losses = config.losses.values()
    return RetrievalModel(
        towers=config.towers,
        fields=config.encoded,
        topology=config.topology,
        vocab_size=vocab_size,
        terms=lexical_terms(config, vocab_size, words),
        dtype=DTYPES[config.dtype],
        keep_raw=any(loss.other_topology(config) for loss in losses),
        keep_vectors=tuple(
            sorted({name for loss in losses for name in loss.reads_vectors(config)})
        ),
    )


def lexical_terms(config: Config, vocab_size: int, words: Words | None = None) -> dict[str, Terms]:
    """Returns the terms of every lexical head, by the field that owns it; see `make_model`."""
    terms = {}
    sizes = [tower.vocab_size for tower in config.towers.values()]
    for name, field in config.encoded.items():
        if not field.head.lexical or field.shares_head:
            continue
        tower, rule = config.towers[field.tower], field.head.terms
        # Images have the terms of the texts that they are compared with.
        rows = tower.vocab_size if tower.word_table else next(filter(None, sizes), None)
        if words is None or (rule == "all" and rows):
            special = () if words is None else tuple(sorted(words.special_ids))
            by_size = terms_of_size(rule, rows or vocab_size)
            terms[name] = dataclasses.replace(by_size, special=special)
        else:
            terms[name] = terms_of(rule, words)
    return terms


TRAINING_ONLY = ("scalars", "losses")  # parameters of the losses


def of_model(params: Any) -> Any:
    """Returns the parameters of the model, without parameters of the losses."""
    return {name: tree for name, tree in params.items() if name not in TRAINING_ONLY}


def with_stats(params: Any, batch_stats: Any) -> Any:
    """Returns parameters and running averages, if any, as one tree (`batch_stats`)."""
    return {**params, "batch_stats": batch_stats} if batch_stats else params


def variables(weights: Any) -> dict[str, Any]:
    """Returns the model's variables from a tree of `with_stats`."""
    params = of_model(weights)
    batch_stats = of_model(params.pop("batch_stats", {}))
    return {"params": params, "batch_stats": batch_stats}
