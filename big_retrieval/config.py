"""The configuration of a run: one typed tree of defaults.

Every key, its type and its meaning is here. Config files change the tree in its ConfigDict form
(`big_retrieval.recipe`); `load` gives the typed form that the rest of the code reads;
`big_retrieval.checks` holds what no single key can tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from big_retrieval import schema
from big_retrieval.config_data import (  # noqa: F401 - config files take all parts from here
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
from big_retrieval.config_evals import Evaluation, Ranking, Retrieval, ZeroShot  # noqa: F401
from big_retrieval.config_loss import (  # noqa: F401
    Contrastive,
    Exchange,
    FalseNegatives,
    PairLabels,
    Sigmoid,
    Sparsity,
    Temperature,
    Vdr,
)
from big_retrieval.config_texts import Beir, Dpr, Triples  # noqa: F401
from big_retrieval.config_towers import RESNET_SIZES, ResNet  # noqa: F401

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu"]
Remat = Literal["none", "block", "dots"]


@dataclass(frozen=True)
class Mesh:
    """Devices along each axis; -1 takes all that the other axes leave."""

    data: int = -1  # rows of the batch
    fsdp: int = 1  # rows of the batch, and every parameter split along its width
    tensor: int = 1  # heads, MLP columns and vocabulary of every layer


@dataclass(frozen=True)
class ViT:
    """A pre-LN vision transformer with M class tokens."""

    type: Literal["vit"] = "vit"
    patch: int = 16
    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp: int = 3072
    class_tokens: int = 1
    tokens_as_one: bool = False  # they share the weight of a single one in attention
    # the class tokens, one mean of the patches, or all patches (for lexical heads)
    pool: Literal["first", "mean", "none"] = "first"
    norm_first: bool = True  # a norm in front of the first layer: CLIP's have one
    patch_bias: bool = False
    epsilon: float = 1e-5  # of all norms
    activation: Activation = "gelu"
    dropout: float = 0.0
    embedding_std: float | None = None  # of learned tables at the start; None: as published
    remat: Remat = "none"  # what the backward pass computes again
    scan: bool = False  # one compiled layer instead of `depth` (same numbers, same names)


@dataclass(frozen=True)
class Bert:
    """A text transformer with M class tokens: BERT's kind, or CLIP's (pre, causal, last)."""

    type: Literal["bert"] = "bert"
    width: int = 512
    depth: int = 12
    heads: int = 8
    mlp: int = 2048
    class_tokens: int = 1
    tokens_as_one: bool = False  # they share the weight of a single one in attention
    # copies of one end, one mean of the text, or all positions (for lexical heads)
    pool: Literal["first", "last", "mean", "none"] = "first"
    norm: Literal["post", "pre"] = "post"
    final_norm: bool = True  # a norm behind the last layer: BERT has none
    causal: bool = False
    token_types: int = 0  # rows of BERT's table of segments
    relative_positions: int = 0  # buckets of a bias by distance: MPNet's 32
    epsilon: float = 1e-5
    activation: Activation = "gelu"
    dropout: float = 0.0
    embedding_std: float | None = None  # of learned tables at the start; None: as published
    remat: Remat = "none"
    scan: bool = False
    vocab_size: int | None = None  # None: the tokenizer's


@dataclass(frozen=True)
class Head:
    """The projection from class tokens to points; shared by all tokens, without bias."""

    type: Literal["projection"] = "projection"
    dim: int | None = 512  # per class token; None: the tokens themselves, no projection
    spheres: int | None = None  # one class token only: its `dim` is cut into this many blocks


@dataclass(frozen=True)
class Lexical:
    """One number for every word piece, pooled over a text or an image's patches (SPLADE, VDR)."""

    type: Literal["lexical"] = "lexical"
    tied: bool = True  # columns are the rows of the tower's word table; False: an own kernel
    transform: Literal["none", Activation] = "none"  # a dense layer with it, as BERT's has
    layer_norm: bool = True  # in front of the columns; False where the tower ends with one
    epsilon: float = 1e-5  # of that norm
    use_bias: bool = False  # of the columns
    bias_init: float = 0.0  # what it starts at; below 0, few columns are active at first
    activation: Literal["elu1p", "log1p_relu", "log1p_log1p_relu", "relu"] = "log1p_relu"
    pooling: Literal["max", "mean"] = "max"  # over the positions
    pooling_top: int | None = None  # mean: of only so many of the largest; None: of all
    pool_padding: bool = False  # padding takes part, as in the VDR authors' code
    # the word pieces that have a column: "all", "words" (no special or unused ones), "ascii" (those
    # of words in ASCII), or ids from a number on, such as "1000-"
    columns: str = "all"
    normalise: bool = False  # to norm 1 over the columns
    # the gate of evaluations, indexes and searches (VDR, Eq. 4): only so many of the strongest
    # columns stay (None: all above 0), and with `own_words` those of the text's words, too
    top: int | None = None
    own_words: bool = False


@dataclass(frozen=True)
class Init:
    """Published or own weights that a tower starts from instead of random ones."""

    path: str = ""  # file, folder, or a name on the hub
    tower: str = ""  # of a checkpoint that has several; empty: the one that reads the same
    head: bool = True  # the head behind it, too, where the checkpoint has one of the kind
    fresh: tuple[str, ...] = ()  # our parameters (patterns such as ln_final/*) that it may lack
    skip: tuple[str, ...] = ()  # its parameters (patterns) that are not wanted


@dataclass(frozen=True)
class ImageField:
    """One image of a record."""

    kind: Literal["image"] = "image"
    side: Literal["query", "document"] = "document"
    tower: str = "image"
    column: str = "image"
    size: int = 224  # pixels, square
    crop_scale: tuple[float, float] = (0.5, 1.0)  # share of the area; (1, 1): no crop
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    flip: float = 0.5  # probability
    flip_unsafe_words: tuple[str, ...] = ("left", "right")  # captions that a flip makes untrue
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)
    weight: float = 1.0  # in the average of its side's fields, which divides by their sum
    optional: bool = False  # a record may lack it: its weight is then 0 and its losses are left out
    shares_head: str = ""  # another field, whose head is this one's, too
    head: Head | Lexical = field(default_factory=Head)


@dataclass(frozen=True)
class TextField:
    """One text of a record; where it has several, training draws one."""

    kind: Literal["text"] = "text"
    side: Literal["query", "document"] = "query"
    tower: str = "text"
    column: str = "captions"
    length: int = 77  # tokens, [CLS] and [SEP] included
    title: str = ""  # column of its title: [CLS] title [SEP] text [SEP], cut at the end
    prefix: str = ""  # put before every text, such as "query: ", in front of its title
    weight: float = 1.0  # in the average of its side's fields, which divides by their sum
    optional: bool = False  # a record may lack it: its weight is then 0 and its losses are left out
    shares_head: str = ""  # another field, whose head is this one's, too
    head: Head | Lexical = field(default_factory=Head)


@dataclass(frozen=True)
class Tokenizer:
    """From text to ids; one for all text fields."""

    type: Literal["wordpiece", "clip", "auto"] = "wordpiece"
    path: str = ""  # file, folder or hub name; empty: learned from the training captions
    vocab_size: int = 8192  # of a learned vocabulary, at most


@dataclass(frozen=True)
class Schedule:
    """The learning rate over the steps, as a share of `optimizer.lr`."""

    type: Literal["cosine", "linear", "rsqrt", "constant"] = "cosine"
    warmup_steps: int = 0  # linear from 0
    cooldown_steps: int = 0  # linear to `end` at the end of the run
    end: float = 0.0  # share of the peak that cosine, linear and the cool-down end at
    floor: float = 0.0  # behind the warm-up the share never falls below
    timescale: int = 10_000  # of rsqrt, in steps


@dataclass(frozen=True)
class Optimizer:
    """AdamW; rules are (regular expression over parameter names, factor), the last match holds."""

    lr: float = 1e-3
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-6
    weight_decay: float = 0.1  # of matrices; never of biases, norms, scalars, class and position
    clip_norm: float | None = 1.0  # of the whole gradient
    ema_decay: float | None = None  # evaluators and exports then use the average
    lr_factors: tuple[tuple[str, float], ...] = ()
    decay_factors: tuple[tuple[str, float], ...] = ()
    freeze: tuple[str, ...] = ()
    schedule: Schedule = field(default_factory=Schedule)


@dataclass(frozen=True)
class Config:
    """A run. `total_steps` wins over `total_examples`, that over `total_epochs`."""

    seed: int = 0
    total_steps: int | None = None
    total_examples: int | None = None
    total_epochs: float | None = None
    stop_after: int | None = None  # save and exit after this step, with the schedule unchanged
    batch_size: int = 256  # global
    microbatch: int | None = None  # rows of it that are encoded at a time; same loss and gradient
    log_every: int = 10
    eval_every: int = 0  # steps; 0: at the end only
    checkpoint_every: int = 1000
    hang_after: float = 900.0  # seconds without a step, after which a run ends itself; 0: never
    report: bool = True  # write report.html at the end
    best_metric: str = ""  # its best checkpoint is kept besides the newest two
    best_mode: Literal["max", "min"] = "max"
    dtype: Literal["float32", "bfloat16"] = "bfloat16"  # of the towers' computations
    mesh: Mesh = field(default_factory=Mesh)
    fields: dict[str, ImageField | TextField] = field(default_factory=dict)
    towers: dict[str, ViT | Bert | ResNet] = field(default_factory=dict)
    init: dict[str, Init] = field(default_factory=dict)  # by tower; "model": all, and temperature
    topology: Literal["sphere", "euclidean", "oblique", "geodesic", "inner"] = "sphere"
    temperature: Temperature = field(default_factory=Temperature)
    labels: PairLabels = field(default_factory=PairLabels)
    loss: Contrastive | Sigmoid | Vdr = field(default_factory=Contrastive)
    optimizer: Optimizer = field(default_factory=Optimizer)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    data: Source = field(default_factory=Scenes)
    negatives: HardNegatives = field(default_factory=HardNegatives)
    loader: Loader = field(default_factory=Loader)
    evals: dict[str, Evaluation] = field(default_factory=dict)


# What a resumed run may change: nothing in here moves a parameter's trajectory.
FREE_ON_RESUME = (
    "log_every", "eval_every", "checkpoint_every", "stop_after", "best_metric", "best_mode", "mesh",
    "microbatch", "loss.exchange", "loss.block", "loader.threads", "loader.workers",
    "loader.prefetch", "loader.max_damaged", "evals", "hang_after", "report",
)  # fmt: skip


def free_on_resume(key: str) -> bool:
    """Whether a key, e.g. config.mesh.data, may differ when a run goes on."""
    return any(f"{key}.".startswith(f"config.{free}.") for free in FREE_ON_RESUME)


def lexical_head(fields: Mapping[str, ImageField | TextField], name: str) -> Lexical | None:
    """The lexical head of a field, its own or the one that it shares; None: it has another."""
    head = fields[fields[name].shares_head or name].head
    return head if isinstance(head, Lexical) else None


def negatives_field(config: Config) -> str:
    """The document field that `config.negatives` are read like; "" where there are none."""
    if not config.negatives.count:
        return ""
    documents = [name for name, field in config.fields.items() if field.side == "document"]
    return config.negatives.field or documents[0]


VIT_SIZES = {  # patch, width, depth, heads, mlp
    "Ti/16": (16, 192, 12, 3, 768),
    "S/16": (16, 384, 12, 6, 1536),
    "B/32": (32, 768, 12, 12, 3072),
    "B/16": (16, 768, 12, 12, 3072),
    "L/14": (14, 1024, 24, 16, 4096),
}


def load(raw: Any) -> Config:
    """The typed form of a ConfigDict.

    Raises:
      UserError: an unknown or lost key or a wrong type, named by its path.
    """
    return schema.parse(Config, raw)


def load_saved(raw: Any) -> Config:
    """The typed form of a saved config.json; keys that came later get their defaults.

    Raises:
      UserError: an unknown key or a wrong type, named by its path.
    """
    return schema.parse(Config, schema.complete(Config, raw))
