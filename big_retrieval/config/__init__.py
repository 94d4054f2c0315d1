"""Configuration of a run: one typed tree of defaults, with type and meaning of every key.

The root is `Config` (`run.py`). Config files change the tree in its ConfigDict form (`recipe.py`).
`load` returns the typed form, which all other code reads. `checks/` rejects keys that do not fit
together.
"""

import importlib
from typing import TYPE_CHECKING, Any

from big_retrieval.config.data import HardNegatives, Loader
from big_retrieval.config.evals import Evaluator, once
from big_retrieval.config.fields import Field, Tokenizer, lexical_head
from big_retrieval.config.heads import Head
from big_retrieval.config.labels import PairLabels
from big_retrieval.config.loss import Constraint, Loss
from big_retrieval.config.optimizer import (
    Ema,
    GroupRate,
    NoAveraging,
    Optimizer,
    ParameterGroup,
    Phase,
    Schedule,
    Swa,
)
from big_retrieval.config.places import module_of
from big_retrieval.config.ranges import AtLeast0, AtLeast1, NotNegative, Positive, Range, Share
from big_retrieval.config.registry import Plugin, register
from big_retrieval.config.run import (
    Config,
    Init,
    Mesh,
    Profile,
    free_on_resume,
    is_lexical,
    load,
    load_saved,
    negatives_field,
)
from big_retrieval.config.sources import Source
from big_retrieval.config.topologies import Topology
from big_retrieval.config.towers import Tower
from big_retrieval.config.trackers import Tracker
from big_retrieval.config.update_rules import UpdateRule

if TYPE_CHECKING:
    from big_retrieval.data.fields.arrays import ArrayField
    from big_retrieval.data.fields.images import ImageField
    from big_retrieval.data.fields.regions import RegionField
    from big_retrieval.data.fields.texts import TextField
    from big_retrieval.data.formats.captioned import Karpathy, Precomputed
    from big_retrieval.data.formats.file_sources import Pairs, Tar, Tfds
    from big_retrieval.data.formats.pictures import ClassFolders
    from big_retrieval.data.judged.open_graded import Graded
    from big_retrieval.data.mixture import Mixture, MixturePart
    from big_retrieval.data.passages.published import Beir, Dpr
    from big_retrieval.data.passages.triples import Triples
    from big_retrieval.data.synthetic.graded_scenes import GradedScenes
    from big_retrieval.data.synthetic.scenes import Scenes
    from big_retrieval.evals.caption_ndcg import CaptionNdcg
    from big_retrieval.evals.crisscrossed import CrisscrossedCaptions
    from big_retrieval.evals.geometry import Geometry
    from big_retrieval.evals.probes import FewShotProbe, LinearProbe
    from big_retrieval.evals.ranking import Ranking
    from big_retrieval.evals.retrieval import Retrieval
    from big_retrieval.evals.zeroshot import ZeroShot
    from big_retrieval.losses.contrastive import Contrastive, Sigmoid, Sparsity
    from big_retrieval.losses.ltd import DecoderLoss, InputTarget, LatentTarget
    from big_retrieval.losses.pairs import LogitScale, PairLoss
    from big_retrieval.losses.triplet import Triplet
    from big_retrieval.losses.vdr import TermMask, Vdr
    from big_retrieval.models.batch_norm import BatchNormed
    from big_retrieval.models.bert import Bert
    from big_retrieval.models.heads import Mlp, Projection, SharedTransformer
    from big_retrieval.models.lexical import Lexical
    from big_retrieval.models.recurrent import Gru
    from big_retrieval.models.regions import RegionGraph, RegionTransformer
    from big_retrieval.models.resnet import RESNET_SIZES, ResNet
    from big_retrieval.models.vit import VIT_SIZES, ViT
    from big_retrieval.train.rules import AdamP, AdamW, Optax, Sgd
    from big_retrieval.train.trackers import Mlflow, TensorBoard, Wandb


def __getattr__(name: str) -> Any:
    module = module_of(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
