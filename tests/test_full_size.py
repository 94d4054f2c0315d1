"""The configs at their full size: published parameter counts, and steps that compile.

Nothing is allocated and no data are needed: parameters, state and batches are abstract.
"""

import dataclasses
import importlib
import math
from collections.abc import Iterable
from typing import Any

import jax
import pytest

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.config import Bert, Config, TextField, ViT
from big_retrieval.train.build import BuiltModel, build_model
from big_retrieval.train.step import abstract_batch, compile_step
from tests.helpers import ROOT

VOCAB = 30522  # of bert-base-uncased

COUNTS = {  # config, argument -> parameters; the first two are the paper's
    ("oblique_b16", ""): 139_368_449,
    ("clip_b16", ""): 139_952_129,
    ("oblique_s16_yfcc15m", ""): 75_229_697,
    ("oblique_s16_yfcc15m", "structure=multi-32-16"): 75_211_265,
    ("oblique_s16_yfcc15m", "structure=multi-64-8,topology=geodesic"): 75_229_697,
    ("oblique_s16_yfcc15m", "structure=ob-64-8"): 75_622_145,
    ("oblique_s16_yfcc15m", "structure=ob-64-8,topology=geodesic,logit_scale=1,fixed"): 75_622_145,
    ("oblique_s16_yfcc15m", "structure=sphere,logit_scale=14.3"): 75_622_145,
    ("oblique_s16_yfcc15m", "structure=euclidean"): 75_622_145,
}
CLIPS = {  # as published; the vocabulary is CLIP's
    ("gcl_gs10m", "scratch"): 151_277_313,
    ("gcl_gs10m", "scratch,fields=title"): 63_428_097,  # its text tower and projection
    ("gcl_gs10m", "scratch,encoder=vit_b16"): 149_620_737,
    ("gcl_gs10m", "scratch,encoder=vit_l14"): 427_616_513,
}
BERT = 109_482_240 - 768 * 769  # as published, without its pooler; 512 positions
MINILM = 22_713_216 - 384 * 385  # the same
VIT_B32 = 87_849_216 - 768 * 512  # of CLIP, without its projection


def cut(published: int, positions: int, width: int = 768) -> int:
    """An encoder that reads shorter texts."""
    return published - (512 - positions) * width


NORM = 2 * 768  # of a lexical head
COLUMNS = 29_523  # BERT's words by rule: their biases, where a head has them
PATCHES = VIT_B32 - 2 * 768  # neither class token nor position for it
MASKED = 109_514_298 - BERT  # BERT's published head, without the word table
LEXICAL = {  # VDR's and its baselines; 1 is the logit scale
    ("vdr_t2t_msmarco", ""): 2 * (cut(BERT, 256) + NORM) + 1,
    ("vdr_t2t_msmarco", "own"): 2 * (cut(BERT, 256) + NORM + 29_523 * 768) + 1,
    ("dpr_msmarco", ""): 2 * cut(BERT, 256) + 1,
    ("splade_msmarco", ""): cut(BERT, 256) + MASKED + 1,
    ("vdr_cm_yfcc15m", ""): cut(BERT, 77) + NORM + PATCHES + 29_523 * 768 + 1,
    ("vdr_cm_yfcc15m", "terms=ascii"): cut(BERT, 77) + NORM + PATCHES + 27_623 * 768 + 1,
    ("clip_bert_yfcc15m", ""): cut(BERT, 77) + VIT_B32 + 2 * 768 * 512 + 1,
    ("medical", "init=none"): cut(MINILM, 64, 384) + 2 * 384 + COLUMNS + 1,
    ("medical", "init=none,method=dpr"): cut(MINILM, 64, 384) + 1,
    ("medical", "init=none,method=splade"): cut(MINILM, 64, 384) + 2 * 384 + COLUMNS + 1,
}
RESNET50 = 25_557_032 - 2048 * 1000 - 1000  # torchvision's, without its classifier
GRU_WORDS = VOCAB * 300 + 2 * 3 * 512 * (300 + 512 + 2)  # both directions
PROJECTOR = 1024 * 1024 + 1024 * 1024  # of captions
DECODER = 2 * (1024 * 1024 + 1024) + 1024 * 768 + 768
INPUT_DECODER = VOCAB * 300 + 3 * 1024 * (300 + 1024 + 2) + (1024 + 1) * VOCAB
IMAGE_BASE = RESNET50 + 2048 * 2048 + 2048 * 1024
GRAPH = 2049 * 1024 + 4 * (4 * 1025 * 1024 + 2 * 1024) + 3 * 1024 * (1024 + 1024 + 2) + 2 * 1024
POST_NORM = {d: 4 * d * (d + 1) + 2 * d * 2048 + 2048 + d + 4 * d for d in (1024, 2048)}  # a layer
SIX_LAYERS = (VOCAB + 64 + 2 + 2) * 768 + 6 * (4 * 768 * 769 + 2 * 768 * 3072 + 3072 + 5 * 768)
TERN = (2053 + 1 + 2048 + 1) * 2048 + 4 * POST_NORM[2048] + 2049 * 1024 + 769 * 1024
LTD = {
    ("ltd_f30k", ""): IMAGE_BASE + GRU_WORDS + PROJECTOR + DECODER + 1,
    ("ltd_coco", "mode=contrastive"): IMAGE_BASE + GRU_WORDS + PROJECTOR + 1,
    ("ltd_f30k", "loss=triplet,decoder=itd"):  # two batch norms, no logit scale
        IMAGE_BASE + GRU_WORDS + PROJECTOR + INPUT_DECODER + 2 * 2 * 1024,
    ("ltd_vsrn", ""): GRAPH + GRU_WORDS + PROJECTOR + DECODER + 1,
    ("ltd_tern", ""): TERN + 2 * POST_NORM[1024] + SIX_LAYERS + DECODER + 1,
}  # fmt: skip
# One of each paper's and the two that `by_hand` counts; the others in slow tests.
QUICK = {
    ("oblique_b16", ""), ("quickstart", ""), ("gcl_gs10m", "scratch"), ("vdr_cm_yfcc15m", ""),
    ("ltd_f30k", ""),
}  # fmt: skip
TINY = {("quickstart", ""): None, ("emoji", ""): None}
SMALL = (
    ("emoji_gcl", ""),
    ("emoji_ltd", ""),
    ("emoji_vdr", ""),
    ("scenes_oblique", ""),
    ("scenes_vdr", ""),
)  # their :runlocal says all


def keys(table: Iterable[tuple[str, str]]) -> list[Any]:
    """Pytest's parameters of a table; those that are not in `QUICK` are slow."""
    return [key if key in QUICK else pytest.param(*key, marks=pytest.mark.slow) for key in table]


def prepare(
    name: str, arg: str, vocab_size: int = VOCAB, layers: int | None = None
) -> tuple[Config, BuiltModel]:
    """The config and its parts on eight devices; `layers`: of each tower, in place of all."""
    config = configs.load(importlib.import_module(f"configs.{name}").get_config(arg))
    if layers is not None:
        towers: Any = config.towers.items()
        fewer = {key: dataclasses.replace(tower, depth=layers) for key, tower in towers}
        config = dataclasses.replace(config, towers=fewer)
    mesh = parallel.make_mesh(config)
    return config, build_model(config, mesh, vocab_size=vocab_size, total_steps=1000)


def by_hand(c: Config, vocab_size: int) -> int:
    """The number of parameters, added up from the paper's description of the model."""
    total = 1  # the logit scale, also where it is fixed
    for field in c.fields.values():  # each has a tower of its own
        tower = c.towers[field.tower]
        d, m = tower.width, tower.class_tokens
        attention, mlp, norms = 4 * (d * d + d), 2 * d * tower.mlp + tower.mlp + d, 2 * 2 * d
        total += tower.depth * (attention + mlp + norms)
        total += 2 * 2 * d  # one more norm in front and one behind
        if isinstance(tower, ViT):
            size = getattr(field, "size") // tower.patch  # noqa: B009
            total += 3 * tower.patch**2 * d + m * d + (size**2 + m) * d
        else:  # the first class token is the word [CLS]
            assert isinstance(tower, Bert)
            assert isinstance(field, TextField)
            total += vocab_size * d + field.length * d + (m - 1) * d
            total -= 2 * d if tower.norm == "pre" else 0  # no norm behind the embedding
        total += d * field.head.dim
    return total


def test_every_config_has_a_count() -> None:
    files = {path.stem for path in (ROOT / "configs").glob("*.py")} - {"__init__"}
    assert files == {name for name, _ in (*COUNTS, *CLIPS, *LEXICAL, *LTD, *TINY, *SMALL)}


@pytest.mark.parametrize(("name", "arg"), keys((*COUNTS, *TINY)))
def test_parameter_counts(name: str, arg: str) -> None:
    config, parts = prepare(name, arg)
    total = sum(parts.parameters.values())
    assert total == COUNTS.get((name, arg), total)
    assert total == by_hand(config, VOCAB)
    assert total == sum(x.size for x in jax.tree.leaves(parts.abstract.params))


@pytest.mark.parametrize(("name", "arg"), keys(CLIPS))
def test_published_counts(name: str, arg: str) -> None:
    """Fields that share a tower and a head add nothing."""
    _, parts = prepare(name, arg, 49_408)
    assert sum(parts.parameters.values()) == CLIPS[name, arg]


@pytest.mark.parametrize(("name", "arg"), keys((*LEXICAL, *LTD)))
def test_counts_of_vdr_and_ltd(name: str, arg: str) -> None:
    """From published counts of encoders and the facts of the papers; the vocabulary is BERT's."""
    _, parts = prepare(name, arg)
    assert sum(parts.parameters.values()) == (LEXICAL | LTD)[name, arg]


def test_counts_equal_vdr_paper() -> None:
    """Table 3 has 217M for two encoders, and 197M for texts and images: without the projection."""
    assert round(2 * BERT / 1e6, 1) == 217.8
    assert 217e6 < LEXICAL["vdr_t2t_msmarco", ""] < 218e6
    images = LEXICAL["vdr_cm_yfcc15m", ""]
    assert round(images / 1e6) == 219
    assert round((images - 29_523 * 768) / 1e6) == 196
    assert round((BERT + VIT_B32) / 1e6, 1) == 196.3


ENCODERS = {  # vocabulary, positions and width; parameters as published, without the pooler's
    "e5": (30_522, 512, 1024, 335_141_888 - 1024 * 1025),
    "roberta": (50_265, 514, 768, 124_645_632 - 768 * 769),
    "roberta_clip": (50_265, 514, 768, 124_645_632 - 768 * 769 + 640 * (768 + 512)),
}


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ENCODERS)
def test_text_encoders(encoder: str) -> None:
    """Ours have 77 positions, and a logit scale."""
    words, positions, width, published = ENCODERS[encoder]
    _, parts = prepare("gcl_gs10m", f"scratch,encoder={encoder}", words)
    assert sum(parts.parameters.values()) == published - (positions - 77) * width + 1


def test_gcl_fields_share_towers() -> None:
    config, parts = prepare("emoji_gcl", "")
    assert set(parts.parameters) == {"text", "image", "query_head", "image_head", "scalars"}
    assert config.fields["title"].tower == config.fields["query"].tower


def size(tree: Any) -> int:
    """Bytes of abstract arrays on one device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(tree)
        if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    )


def compiles(name: str, arg: str, layers: int) -> None:
    """Compiles the training step and compares the compiler's accounting with the arrays."""
    config, parts = prepare(name, arg, layers=layers)
    batch = abstract_batch(config, parts.mesh)
    compiled = compile_step(parts.steps[0], parts.abstract, batch, parts.mesh)
    memory: Any = compiled.memory_analysis()
    state, rows = size(parts.abstract), size(batch)
    assert state >= 12 * sum(parts.parameters.values()) / parts.mesh.shape["fsdp"]
    assert rows * 8 == size(jax.tree.map(lambda x: _whole(x, parts.mesh), batch))
    assert memory.argument_size_in_bytes == pytest.approx(state + rows, rel=0.01)
    assert memory.alias_size_in_bytes == pytest.approx(state, rel=0.01)  # no second state
    assert memory.output_size_in_bytes == pytest.approx(state, rel=0.01)
    print(f"{name}:{arg}", {k: f"{getattr(memory, k) / 2**30:.2f} GiB" for k in PARTS})


PARTS = ("argument_size_in_bytes", "alias_size_in_bytes", "temp_size_in_bytes")


def _whole(x: jax.ShapeDtypeStruct, mesh: jax.sharding.Mesh) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=parallel.replicated(mesh))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arg", "layers"),
    [
        ("oblique_b16", "", 2),
        ("oblique_s16_yfcc15m", "", 1),
        ("oblique_s16_yfcc15m", "structure=ob-64-8,topology=geodesic,logit_scale=1,fixed", 1),
        ("gcl_gs10m", "scratch,batch=24576,microbatch=2048", 1),
        ("vdr_t2t_msmarco", "", 1),
        ("splade_msmarco", "", 1),
        ("vdr_cm_yfcc15m", "microbatch=512", 1),
        ("medical", "init=none", 1),
    ],
)
def test_full_size_compiles(name: str, arg: str, layers: int) -> None:
    """Batch and widths are the config's everywhere; the layers of a tower are copies of one.

    clip_b16, dpr_msmarco and clip_bert_yfcc15m have towers and heads of these at the same sizes.
    """
    compiles(name, arg, layers)
