"""The configuration of a run: one typed tree of defaults, every key with its type and meaning.

The root is `Config` (`run.py`); the other files hold its parts, all of whose names are here.
Config files change the tree in its ConfigDict form (`big_retrieval.recipe`); `load` gives the typed
form that the rest of the code reads; `big_retrieval.checks` holds what no single key can tell.
"""

from big_retrieval.config.data import (
    Graded,
    GradedScenes,
    HardNegatives,
    Karpathy,
    Loader,
    Mixture,
    Pairs,
    Part,
    Scenes,
    SceneSplit,
    Source,
    Tar,
    Tfds,
)
from big_retrieval.config.evals import Evaluator, Ranking, Retrieval, ZeroShot
from big_retrieval.config.fields import Head, ImageField, Lexical, TextField, Tokenizer
from big_retrieval.config.loss import (
    ColumnMask,
    Contrastive,
    Exchange,
    FalseNegatives,
    PairLabels,
    Sigmoid,
    Sparsity,
    Temperature,
    Vdr,
)
from big_retrieval.config.optimizer import (
    Ema,
    Group,
    GroupRate,
    NoAveraging,
    Optimizer,
    Phase,
    Schedule,
    Swa,
)
from big_retrieval.config.registry import Plugin, register
from big_retrieval.config.run import (
    FREE_ON_RESUME,
    Config,
    Init,
    Mesh,
    free_on_resume,
    is_lexical,
    lexical_head,
    load,
    load_saved,
    negatives_field,
)
from big_retrieval.config.texts import Beir, Dpr, Triples
from big_retrieval.config.towers import (
    RESNET_SIZES,
    VIT_SIZES,
    Activation,
    Bert,
    Remat,
    ResNet,
    ViT,
)
from big_retrieval.config.update_rules import AdamP, AdamW, Optax, Sgd, UpdateRule
