"""Explains a model: words for lexical models, Grad-CAM for dense models.

    big-retrieval explain --run=RUN --text="a red ball" [--with=ball.jpg] [--mode=bag]
    big-retrieval explain --run=RUN --image=ball.jpg [--patches=0:3,2:5] [--map=ball] [--out=FOLDER]
    big-retrieval explain --run=DENSE --text="a red ball" --image=ball.jpg [--out=FOLDER]
    big-retrieval explain examples --run=RUN --data=evals.test --out=FOLDER [--count=24] [--seed=0]
    big-retrieval explain vocabulary --run=RUN --data=evals.test [--field=image]
    big-retrieval explain vocabulary --untrained --config=FILE --data=evals.test

For a dense model, the command shows the patches and words that produced the score of every text
with every image. --untrained takes the config's model before its first step, such as a published
BERT.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from big_retrieval.cli.option_groups import ConfigOptions, OutputOptions, PluginOptions
from big_retrieval.cli.options import AtLeast1, Repeated, only_one
from big_retrieval.errors import UserError

BATCH = 256  # texts or images that an untrained model encodes at a time


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(OutputOptions, PluginOptions):
    run: Path  # Run or checkpoint folder
    field: str | None = None  # Model field of the texts or images, if the model has several
    with_field: str | None = None  # Model field of --with
    # Search mode to explain: --text or --image is the query, --with the document
    mode: Literal["parametric", "bag", "binary"] = "parametric"
    words: AtLeast1 = 20  # Number of words in a list


@dataclass(frozen=True, kw_only=True)
class ItemOptions(ExplainOptions):
    text: Repeated = ()  # Text to explain
    image: Repeated = ()  # Image file to explain
    with_: str | None = None  # Text or image file to compare with every --text and --image
    patches: Repeated = ()  # Rows and columns of patches: r0:r1,c0:c1
    map: Repeated = ()  # Word to show at each patch of the images
    out: Path | None = None  # Folder of pictures and a page


@dataclass(frozen=True, kw_only=True)
class ExampleCommandOptions(ExplainOptions):
    data: str  # Records: data or evals.NAME of the model's config, or a file of pairs
    out: Path  # Folder of the page
    words: AtLeast1 = 8  # Number of words in a list
    count: AtLeast1 = 24  # Number of records
    seed: int = 0  # Seed of the draw


@dataclass(frozen=True, kw_only=True)
class VocabularyOptions(ConfigOptions):
    data: str  # Records: data or evals.NAME of the model's config, or a file of pairs
    run: Path | None = None  # Run or checkpoint folder
    untrained: bool = False  # Model of --config before its first step, instead of --run
    field: str | None = None  # Model field, if the model has several
    words: AtLeast1 = 20  # Number of words in a list
    count: AtLeast1 | None = None  # Number of records; all by default
    out: Path | None = None  # Folder of pictures and a page


def main(options: ItemOptions) -> None:
    if not options.text and not options.image:
        raise UserError("Nothing to explain. Add --text=TEXT or --image=FILE.")
    if (options.patches or options.map) and not (options.image or options.with_):
        raise UserError("--patches and --map need an image. Add --image=FILE.")
    if options.mode != "parametric" and options.with_ is None:
        raise UserError(f"--mode={options.mode} compares a query with a document. Add --with.")
    with options.owning_folder(options.out):
        from big_retrieval.explain.words import lexical_fields
        from big_retrieval.inference.load import load_verified
        from big_retrieval.inference.saved import find, read_config
        from big_retrieval.retrieval.encode import query_field

        checkpoint = find(options.run)
        config = read_config(checkpoint)  # checks flags before the weights are loaded
        for flag, name in (("field", options.field), ("with_field", options.with_field)):
            if name:
                query_field(config, name, flag)
        if lexical_fields(config):
            _explain_lexical(load_verified(checkpoint), options)
        else:
            texts, images = _dense_inputs(options)
            _explain_dense(load_verified(checkpoint), options, texts, images)


def _explain_lexical(model: Any, options: ItemOptions) -> None:
    _check_drawing(options.out)
    from big_retrieval.explain import listings

    field = options.field
    items = [listings.make_item(model, text, "text", field) for text in options.text]
    items += [listings.make_item(model, file, "image", field) for file in options.image]
    other = None
    if options.with_ is not None:
        other = listings.partner(model, options.with_, options.with_field, items[0])
    parts = listings.explain(
        model,
        items,
        other,
        mode=options.mode,
        patches=options.patches,
        maps=options.map,
        draw=options.out is not None,
    )
    _show(list(parts), options.words, options.out, "Explanations", listings.READING)


def _dense_inputs(options: ItemOptions) -> tuple[list[str], list[str]]:
    """Returns the texts and the image files to explain by a dense model."""
    texts, images = [*options.text], [*options.image]
    if options.with_ is not None:
        (images if Path(options.with_).is_file() else texts).append(options.with_)
    if options.patches or options.map or options.mode != "parametric":
        raise UserError("--patches, --map and --mode need a lexical model, not a dense one.")
    if not texts or not images:
        raise UserError(
            "Dense models are explained for a text and an image. Add --text=TEXT and --image=FILE."
        )
    return texts, images


def _explain_dense(model: Any, options: ItemOptions, texts: list[str], images: list[str]) -> None:
    from big_retrieval.explain.attributions import gradcam, lines, write_attributions

    fields = {}
    for name in filter(None, (options.field, options.with_field)):
        fields[f"{model.config.fields[name].modality}_field"] = name
    names = images * len(texts)
    pairs = [(text, image) for text in texts for image in images]
    maps = [gradcam(model, text, image, **fields) for text, image in pairs]
    print("\n\n".join(map(lines, maps, names, [options.words] * len(maps))))
    if options.out is not None:
        print(f"written to {write_attributions(maps, names, options.out, 'Explanations')}")


def examples(options: ExampleCommandOptions) -> None:
    with options.owning_folder(options.out):
        from big_retrieval.explain.examples import ExampleOptions, examples
        from big_retrieval.explain.pages import summary, write_examples
        from big_retrieval.inference.load import load

        model = load(options.run)
        fields = options.field, options.with_field
        sample = options.count, options.seed, options.mode
        source, records = examples(model, ExampleOptions(options.data, *fields, *sample))
        note = (
            f"{len(records):,} of {len(source):,} records of {source.name}, drawn with seed "
            f"{options.seed}; model {model.folder}, mode {options.mode}."
        )
        title = f"Examples: {options.data}"
        path = write_examples(records, options.words, options.out, title, note)
        print(f"{summary(records)} words of the texts that go with them")
        print(f"written to {path}")


def vocabulary(options: VocabularyOptions) -> None:
    if options.untrained != bool(options.config):
        raise UserError("--untrained and --config need each other. Add both flags, or --run.")
    only_one(options, "run", "untrained", required=True)
    _check_drawing(options.out)
    with options.owning_folder(options.out):
        from big_retrieval.explain.vocabulary import vocabulary
        from big_retrieval.inference.load import load
        from big_retrieval.train.build import untrained

        if options.run is None:
            model = untrained(options.load_config(), batch_size=BATCH)
        else:
            model = load(options.run)
        draw = options.out is not None
        parts = vocabulary(model, options.data, options.field, options.count, draw)
        _show(parts, options.words, options.out, "Use of the vocabulary")


ACTIONS = {"": main, "examples": examples, "vocabulary": vocabulary}


def _check_drawing(out: Path | None) -> None:
    """Raises if --out needs matplotlib, which is not installed."""
    if out is not None and not importlib.util.find_spec("matplotlib"):
        raise UserError("--out draws with matplotlib: pip install 'big_retrieval[explain]'.")


def _show(parts: list, words: int, out: Path | None, title: str, reading: str = "") -> None:
    from big_retrieval.explain import pictures
    from big_retrieval.explain.pages import listing_table, write_listings

    print("\n\n".join(listing_table(listing, words) for listing in parts) + "\n")
    if out is None:
        return
    if absent := pictures.missing():
        print(absent)
    print(f"written to {write_listings(parts, words, out, title, reading)}")
