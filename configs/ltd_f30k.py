"""Latent target decoding on Flickr30k: a ResNet-50 and a GRU (docs/LTD.md).

"Reducing Predictive Feature Suppression in Resource-Constrained Contrastive Image-Caption
Retrieval", the base model of Tables 1 and 2: 30 epochs with the ResNet and the word vectors frozen,
then 30 epochs of everything at a tenth of the rate. The paper names two encoders of the targets,
all-mpnet-base-v2 (section 3.4.4) and all-MiniLM-L6-v2 (section 4.2); the first one is ours, as the
authors' jobs have it (MiniLM: size=384).

Needs dataset_flickr30k.json (Karpathy's splits) with the images in a folder beside it, the word
vectors glove.840B.300d.txt, torchvision's ResNet-50, and the vectors of the training captions:

    big-retrieval targets --config=ltd_f30k --out=f30k_targets.npy \\
        --encoder=sentence-transformers/all-mpnet-base-v2
    big-retrieval train --config=ltd_f30k --config.init.image.path=RESNET50 --workdir=runs/ltd
"""

from collections.abc import Callable
from typing import Any

from big_retrieval import config
from big_retrieval.config import recipe

ARGUMENTS: dict[str, Any] = {
    "mode": "constraint", "decoder": "ltd", "loss": "infonce", "eta": 0.2, "beta": 1.0,
    "softmax": "vocabulary", "targets": "", "size": 768,
}  # fmt: skip
Evaluators = Callable[[recipe.Editable, Any], None]


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal; data (the folder, data/flickr30k); mode (constraint, dual, contrastive);
    decoder (ltd, itd); loss (infonce, triplet); eta (0.2), the bound; beta (1.0), the weight;
    softmax (of itd: vocabulary, or time, as released); targets (f30k_targets.npy) and their size
    (768); glove (the file of word vectors; none: random ones)."""
    glove = "data/glove.840B.300d.txt"
    args = recipe.parse_arg(
        arg, **ARGUMENTS | {"data": "data/flickr30k", "glove": glove, "targets": "f30k_targets.npy"}
    )
    return base(args, "flickr30k", "train")


def base(args: Any, name: str, train: str, evaluators: Evaluators | None = None) -> recipe.Editable:
    """The base model on a data set with Karpathy's splits.

    Args:
      name: of the data set, as in dataset_<name>.json.
      train: the splits that are trained on, such as "train+restval".
    """
    c = recipe.base()
    schedule(c, epochs=60)

    # Model
    c.towers.image = recipe.resnet(50)
    head = config.Mlp(dim=1024, batch_norm=args.loss == "triplet")
    c.fields.image = recipe.entry(config.ImageField(), head=head, erasing=0.2)
    c.fields.image.crop_scale, c.fields.image.eval_resize = (0.08, 1.0), 256
    c.fields.image.mean, c.fields.image.std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    c.fields.image.update(flip=0.5, flip_unsafe_words=())  # as the authors', whatever captions say
    if not args.runlocal:
        # Ours: torchvision's V1, the pretrained=True of the authors' code; the paper names none
        c.init.image = recipe.entry(config.Init(), path="resnet50.safetensors", head=False)
    words(c, args, head)
    objective(c, args)

    # Optimiser: the batch norms of the frozen ResNet go by the batch, and their averages move
    cosine = config.Schedule("cosine", interval="epoch")
    c.optimizer.phases.heads = recipe.phase(
        start_epoch=0, frozen="image/.*|text/token_embedding", schedule=cosine,
        batch_stats="update",
    )  # fmt: skip
    c.optimizer.phases.all = recipe.phase(start_epoch=30, lr=2e-5, schedule=cosine)

    # Data
    c.labels.duplicates = False  # as in the paper: records with the same text are negatives
    data(c, args, name, train)
    if evaluators is not None:
        evaluators(c, args)
    return recipe.runlocal(c) if args.runlocal else c


def schedule(c: recipe.Editable, epochs: int) -> None:
    """Length, AdamP, clipping, the mean of five steps' parameters at each epoch's end; the numbers
    at the end are those of the checkpoint with the best sum of recalls on the validation images."""
    c.total_epochs, c.batch_size, c.dtype = epochs, 128, "float32"
    c.log_every, c.eval_every_epochs = 50, 1.0
    c.best_metric, c.final_weights = "retrieval/val/rsum", "best"
    c.optimizer.rule, c.optimizer.lr = recipe.entry(config.AdamP()), 2e-4
    c.optimizer.weight_decay, c.optimizer.clip_norm = 0.0, 2.0  # of the authors' code
    c.optimizer.averaging = recipe.entry(config.Swa())


def words(c: recipe.Editable, args: Any, head: Any) -> None:
    """The caption encoder of the base model and of VSRN: a GRU over whole words."""
    glove = "" if args.runlocal or args.glove == "none" else args.glove
    c.towers.text = recipe.entry(config.Gru(), glove=glove)
    c.fields.text = recipe.entry(config.TextField(), head=head, length=64)
    c.fields.text.word_dropout = c.fields.text.word_deletion = 0.1
    c.tokenizer = recipe.entry(config.Tokenizer(), type="words")
    c.tokenizer.sources = ("data", "evals.val", "evals.test")  # as the authors' vocabulary


def objective(c: recipe.Editable, args: Any) -> None:
    """The losses between images and captions, and the decoder of captions."""
    recipe.one_of("mode", args.mode, ("constraint", "dual", "contrastive"))
    recipe.one_of("decoder", args.decoder, ("ltd", "itd"))
    recipe.one_of("loss", args.loss, ("infonce", "triplet"))
    c.topology = "sphere"
    c.losses.main.logit_scale.update(init=1 / 0.05, learnable=False)
    if args.loss == "triplet":
        c.losses.main = recipe.entry(config.Triplet(), margin=0.2)
    if args.mode == "contrastive":
        return
    if args.decoder == "ltd":
        c.fields.target = recipe.entry(
            config.ArrayField(), shape=(args.size,), aligned_with="text", file=args.targets
        )
        c.losses.decoder = recipe.entry(config.LatentTarget())
    else:
        c.losses.decoder = recipe.entry(config.InputTarget(), softmax_over=args.softmax)
    if args.mode == "dual":
        c.losses.decoder.weight = args.beta
    else:
        c.losses.decoder.constraint.bound = args.eta


def data(c: recipe.Editable, args: Any, name: str, train: str, regions: str = "") -> None:
    """Karpathy's splits: an epoch has every caption once, evaluations an image with its five."""
    splits = config.Karpathy(
        path=f"{args.data}/dataset_{name}.json",
        regions=regions,
        how_to_get=f"see `big-retrieval data get {'regions' if regions else name}`",
    )
    c.data = recipe.entry(splits, split=train, each="captions")
    for split, every in (("val", None), ("test", 0)):
        source = recipe.entry(splits, split=split)
        c.evals[split] = recipe.entry(config.Retrieval(), every=every)
        c.evals[split].data = source
