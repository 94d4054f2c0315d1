"""Explains a model: words of lexical ones, Grad-CAM of dense ones.

    big-retrieval explain --run=RUN --text="a red ball" [--with=ball.jpg]
        [--mode=bag]
    big-retrieval explain --run=RUN --image=ball.jpg [--patches=0:3,2:5]
        [--map=ball] [--words=20] [--out=FOLDER]
    big-retrieval explain examples --run=RUN --data=evals.test --out=FOLDER
        [--count=24] [--seed=0] [--mode=bag]
    big-retrieval explain vocabulary --run=RUN --data=evals.test [--field=image]
    big-retrieval explain vocabulary --untrained --config=FILE --data=evals.test
    big-retrieval explain --run=DENSE --text="a red ball" --image=ball.jpg [--out=FOLDER]

--text, --image and --patches can be given several times. --data is a source of the model's
configuration (data, evals.NAME) or a file of pairs. --untrained takes the config's model before its
first step, such as a published BERT. The last line is of a dense model: which patches and words the
score of every text with every image comes from.
"""

from pathlib import Path
from typing import Any

from absl import flags

from big_retrieval import cli
from big_retrieval.errors import UserError
from big_retrieval.runtime import locks

WITHOUT = ("workdir",)
RUN = flags.DEFINE_string("run", "", "Run or checkpoint folder")
TEXT = flags.DEFINE_multi_string("text", [], "A text to explain")
IMAGE = flags.DEFINE_multi_string("image", [], "An image file to explain")
WITH = flags.DEFINE_string("with", None, "A text or image file to compare each of them with")
FIELD = flags.DEFINE_string("field", None, "Which field they are, where the model has several")
WITH_FIELD = flags.DEFINE_string("with_field", None, "Which field --with is")
MODE = flags.DEFINE_enum(
    "mode",
    "parametric",
    ("parametric", "bag", "binary"),
    "As of search: --text or --image is the query, --with the document",
)
FLAGS = flags.FLAGS
LISTED = flags.DEFINE_integer("words", 20, "Words of a list", lower_bound=1)
PATCHES = flags.DEFINE_multi_string("patches", [], "Rows and columns of patches: r0:r1,c0:c1")
MAP = flags.DEFINE_multi_string("map", [], "A word to show at each patch of the images")
DATA = flags.DEFINE_string("data", "", "examples, vocabulary: which records")
COUNT = flags.DEFINE_integer("count", None, "Of these, how many", lower_bound=1)
OUT = flags.DEFINE_string("out", None, "Folder of pictures and a page")
SEED = flags.DEFINE_integer("seed", 0, "examples: of the draw")
UNTRAINED = flags.DEFINE_bool(
    "untrained", False, "vocabulary: the model of --config before its first step"
)
BATCH = 256  # texts or images that an untrained model encodes at a time
EXAMPLES, FEW = 24, 8  # of a page, and their words, where no flag says otherwise
WORDS = 1


def main(action: str = "") -> None:
    """Does what the first word says; none: explains texts and images."""
    actions = {"": _explain, "examples": _examples, "vocabulary": _vocabulary}
    if action not in actions:
        raise UserError(f"{action!r} is none of {', '.join(filter(None, actions))}; leave it out.")
    if (UNTRAINED.value or cli.CONFIG.value) and (action != "vocabulary" or RUN.value):
        raise UserError("--untrained and --config are for `explain vocabulary` without --run.")
    if UNTRAINED.value != bool(cli.CONFIG.value):
        raise UserError("--untrained and --config go together; give both, or --run.")
    if not RUN.value and not UNTRAINED.value:
        raise UserError("--run is missing: the folder of a run, or of a checkpoint.")
    if OUT.value is None:
        actions[action]()
        return
    out = Path(OUT.value)
    with cli.owning(locks.in_folder(out), out):
        actions[action]()


def _explain() -> None:
    from big_retrieval.explain import listings
    from big_retrieval.explain.words import lexical_fields
    from big_retrieval.inference.load import load

    if not TEXT.value and not IMAGE.value:
        raise UserError("there is nothing to explain: give --text=... or --image=FILE.")
    if (PATCHES.value or MAP.value) and not (IMAGE.value or WITH.value):
        raise UserError("--patches and --map are of images: give --image=FILE.")
    if MODE.value != "parametric" and WITH.value is None:
        raise UserError(f"--mode={MODE.value} is of a query and a document: give --with, too.")
    model = load(RUN.value)
    if not lexical_fields(model.config):
        _explain_dense(model)
        return
    items = [listings.asked(model, text, "text", FIELD.value) for text in TEXT.value]
    items += [listings.asked(model, file, "image", FIELD.value) for file in IMAGE.value]
    other = None
    if WITH.value is not None:
        other = listings.partner(model, WITH.value, WITH_FIELD.value, items[0])
    how = {"patches": PATCHES.value, "maps": MAP.value, "draw": OUT.value is not None}
    parts = list(listings.explain(model, items, other, mode=MODE.value, **how))
    _show(parts, "Explanations", listings.READING)


def _explain_dense(model: Any) -> None:
    """Grad-CAM of every text with every image."""
    from big_retrieval.explain.attributions import gradcam, lines, write

    texts, images = [*TEXT.value], [*IMAGE.value]
    if WITH.value is not None:
        (images if Path(WITH.value).is_file() else texts).append(WITH.value)
    if PATCHES.value or MAP.value or MODE.value != "parametric":
        raise UserError("--patches, --map and --mode are of lexical models; this one is dense.")
    if not texts or not images:
        raise UserError(
            "the model is dense, so that the score of a text with an image is explained: give "
            "--text=... and --image=FILE."
        )
    fields = {}
    for name in filter(None, (FIELD.value, WITH_FIELD.value)):
        kind = model.config.fields[name].modality if name in model.config.encoded else "text"
        fields[f"{kind}_field"] = name
    names = images * len(texts)
    asked = [(text, image) for text in texts for image in images]
    found = [gradcam(model, text, image, **fields) for text, image in asked]
    print("\n\n".join(map(lines, found, names, [LISTED.value] * len(found))))
    if OUT.value is not None:
        print(f"written to {write(found, names, Path(OUT.value), 'Explanations')}")


def _examples() -> None:
    from big_retrieval.explain.examples import ExampleOptions, examples
    from big_retrieval.explain.pages import summary, write_examples
    from big_retrieval.inference.load import load

    if not DATA.value or OUT.value is None:
        absent = "--out" if DATA.value else "--data"
        raise UserError(f"{absent} is missing: --data is evals.NAME, --out the page's folder.")
    model = load(RUN.value)
    which = {"count": COUNT.value or EXAMPLES, "seed": SEED.value, "mode": MODE.value}
    wanted = ExampleOptions(DATA.value, FIELD.value, WITH_FIELD.value, **which)
    source, found = examples(model, wanted)
    drawn = f"{len(found):,} of {len(source):,} records of {source.name}"
    note = f"{drawn}, drawn with seed {SEED.value}; model {model.folder}, mode {MODE.value}."
    words = LISTED.value if FLAGS["words"].present else FEW
    path = write_examples(found, words, Path(OUT.value), f"Examples: {DATA.value}", note)
    print(f"{summary(found)} words of the texts that go with them")
    print(f"written to {path}")


def _vocabulary() -> None:
    from big_retrieval.explain.vocabulary import vocabulary
    from big_retrieval.inference.load import load
    from big_retrieval.train.build import untrained

    if not DATA.value:
        raise UserError("--data is missing: evals.NAME, data, or a file of pairs.")
    start = UNTRAINED.value
    model = untrained(cli.load_config(), batch_size=BATCH) if start else load(RUN.value)
    parts = vocabulary(model, DATA.value, FIELD.value, COUNT.value, OUT.value is not None)
    _show(parts, "Use of the vocabulary")


def _show(parts: list, title: str, reading: str = "") -> None:
    """Prints listings, and writes them into the folder of --out."""
    from big_retrieval.explain import pictures
    from big_retrieval.explain.pages import listing_table, write_listings

    print("\n\n".join(listing_table(part, LISTED.value) for part in parts) + "\n")
    if OUT.value is None:
        return
    if absent := pictures.missing():
        print(absent)
    page = write_listings(parts, LISTED.value, Path(OUT.value), title, reading)
    print(f"written to {page}")
