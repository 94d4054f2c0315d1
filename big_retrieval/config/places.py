"""Modules that define the package's parts; they are imported when needed."""

# Module below big_retrieval -> kind of its parts ("" for none), and its names in
# `big_retrieval.config`. Messages list the parts of a kind in this order.
PLACES: dict[str, tuple[str, tuple[str, ...]]] = {
    "evals.retrieval": ("evaluator", ("Retrieval",)),
    "evals.zeroshot": ("evaluator", ("ZeroShot",)),
    "evals.ranking": ("evaluator", ("Ranking",)),
    "evals.caption_ndcg": ("evaluator", ("CaptionNdcg",)),
    "evals.crisscrossed": ("evaluator", ("CrisscrossedCaptions",)),
    "evals.geometry": ("evaluator", ("Geometry",)),
    "evals.probes": ("evaluator", ("FewShotProbe", "LinearProbe")),
    "data.fields.arrays": ("field", ("ArrayField",)),
    "data.fields.images": ("field", ("ImageField",)),
    "data.fields.regions": ("field", ("RegionField",)),
    "data.fields.texts": ("field", ("TextField",)),
    "models.heads": ("head", ("Mlp", "Projection", "SharedTransformer")),
    "models.lexical": ("head", ("Lexical",)),
    "losses.contrastive": ("loss", ("Contrastive", "Sigmoid", "Sparsity")),
    "losses.ltd": ("loss", ("DecoderLoss", "InputTarget", "LatentTarget")),
    "losses.triplet": ("loss", ("Triplet",)),
    "losses.vdr": ("loss", ("TermMask", "Vdr")),
    "config.update_rules": ("optimizer", ()),
    "train.rules": ("optimizer", ("AdamP", "AdamW", "Optax", "Sgd")),
    "data.synthetic.scenes": ("source", ("Scenes",)),
    "data.formats.file_sources": ("source", ("Pairs", "Tar", "Tfds")),
    "data.formats.captioned": ("source", ("Karpathy", "Precomputed")),
    "data.mixture": ("source", ("Mixture", "MixturePart")),
    "data.formats.pictures": ("source", ("ClassFolders",)),
    "data.judged.open_graded": ("source", ("Graded",)),
    "data.synthetic.graded_scenes": ("source", ("GradedScenes",)),
    "data.passages.published": ("source", ("Beir", "Dpr")),
    "data.passages.triples": ("source", ("Triples",)),
    "similarity": ("topology", ()),
    "models.vit": ("tower", ("VIT_SIZES", "ViT")),
    "models.bert": ("tower", ("Bert",)),
    "models.resnet": ("tower", ("RESNET_SIZES", "ResNet")),
    "models.recurrent": ("tower", ("Gru",)),
    "models.regions": ("tower", ("RegionGraph", "RegionTransformer")),
    "train.trackers": ("tracker", ("Mlflow", "TensorBoard", "Wandb")),
    "losses.pairs": ("", ("LogitScale", "PairLoss")),
    "models.batch_norm": ("", ("BatchNormed",)),
}


def modules_of(kind: str) -> list[str]:
    """Returns the modules that define the parts of a kind."""
    return [f"big_retrieval.{module}" for module, (part, _) in PLACES.items() if part == kind]


def module_of(name: str) -> str | None:
    """Returns the module that defines a name of `big_retrieval.config`, or None."""
    modules = (module for module, (_, names) in PLACES.items() if name in names)
    module = next(modules, None)
    return module and f"big_retrieval.{module}"
