"""What is read of a record, how it becomes a point, and the tokenizer of its texts."""

from dataclasses import dataclass, field
from typing import Literal

from big_retrieval.config.towers import Activation


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
    # columns stay (None: all above 0), and with `own_words` those of a text's words, too
    top: int | None = None
    own_words: bool = True


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
