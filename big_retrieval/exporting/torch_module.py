"""The module that `--to=torch` writes for a model: what it consists of, and its source."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from big_retrieval import __version__
from big_retrieval.config.topologies import topology_part
from big_retrieval.data.text import split_words
from big_retrieval.exporting.parts import Encoding, Exported
from big_retrieval.exporting.torch_forms import TorchContext, TorchForm, torch_form
from big_retrieval.exporting.torch_source import FOLDER, Code, SourceFiles, call, literal, methods
from big_retrieval.interop.source import Flat, below
from big_retrieval.io.manifest import run_folder
from big_retrieval.models.towers import lexical_terms

WORDS = Path(split_words.__file__)  # a source, too, as it imports nothing of ours
# `FixedLengthTokenizer.clean` -> a function of the sources
CLEANERS = {"": "str", "clip": "clip_text", "words": "clean_words"}
SCALARS = "scalars"  # parameters of losses, such as logit scales
READERS = {"text": ("TEXTS", "encode_texts"), "image": ("IMAGES", "encode_images")}


@dataclass(frozen=True)
class Member:
    """A module of the generated class.

    Attributes:
      name: of the attribute.
      path: of its part of the configuration, such as `config.towers.text`.
      part: that part.
      context: what is around it.
    """

    name: str
    path: str
    part: Any
    context: TorchContext

    @functools.cached_property
    def form(self) -> TorchForm:
        """How it is written."""
        return torch_form(self.part, self.context)


def files_of(forms: Iterable[TorchForm]) -> list[Path]:
    """The package's source files, and those of forms of a user's own."""
    return [WORDS, *sorted(FOLDER.glob("*.py")), *(Path(form.file) for form in forms if form.file)]


def members_of(model: Exported) -> Iterator[Member]:
    """The towers, heads, fields (with their fields' names) and the topology of a model."""
    done = set()
    for part in model.encodings:
        owner = part.field.shares_head or part.name
        head = f"{owner}_head"  # a head's owner may have the name of a tower
        shapes = {path: x.shape for path, x in part.params.items()}
        if part.tower_name not in done:
            path = f"config.towers.{part.tower_name}"
            yield Member(part.tower_name, path, part.tower, TorchContext(shapes))
        if head not in done:
            yield _head(model, part, owner)
        done |= {part.tower_name, head}
        yield Member(part.name, f"config.fields.{part.name}", part.field, TorchContext())
    topology = topology_part(model.config.topology)
    yield Member("topology", "config.topology", topology, TorchContext())


def _head(model: Exported, part: Encoding, owner: str) -> Member:
    shapes = {path: x.shape for path, x in part.head_params.items()}
    terms = lexical_terms(model.config, model.tokenizer.vocab_size, model.tokenizer).get(owner)
    tables = [path for path in part.params if path == part.tower.word_table]
    table = {f"{part.tower_name}.{path}": part.params[path].shape for path in tables}
    context = TorchContext(shapes, table, terms)
    return Member(f"{owner}_head", f"config.fields.{part.name}.head", part.head, context)


def source_of(model: Exported) -> str:
    """model.py."""
    members = list(members_of(model))
    forms = {member.path: member.form for member in members}
    sources = SourceFiles(files_of(forms.values()))
    program = "\n\n\n".join([*settings(model, forms), _class(model, members, sources)])
    return sources.file(_docstring(model), program)


def _docstring(model: Exported) -> str:
    name = run_folder(model.model.folder).name
    return (
        f'"""{name}: a retrieval model in PyTorch, written by big_retrieval {__version__}.\n\n'
        f'    model = RetrievalModel.load("FOLDER")  # this file\'s\n\n'
        f"Needs torch, safetensors, tokenizers, pillow and numpy. README.md shows its use.\n"
        '"""'
    )


def settings(model: Exported, forms: Mapping[str, TorchForm]) -> list[str]:
    """The constants that say how fields of texts and of images are read."""
    found = []
    for kind, (constant, _) in READERS.items():
        entries = []
        for part in model.encodings:
            if part.field.modality == kind:
                reads = forms[f"config.fields.{part.name}"].reads
                kept = {key: value for key, value in reads.items() if value}
                entries.append(f"{literal(part.name)}: {literal(kept)}")
        if entries:
            what = {"text": "texts are made ids", "image": "images are prepared"}[kind]
            found.append(f"# How {what}, by field.\n{call(f'{constant} = ', entries, ends='{}')}")
    return ["\n".join(found)] if found else []


def _class(model: Exported, members: list[Member], sources: SourceFiles) -> str:
    """The class RetrievalModel."""
    modalities = {part.field.modality: part.name for part in reversed(model.encodings)}
    template = sources.definitions.pop("RetrievalModel")
    for constant, _ in READERS.values():
        sources.definitions.pop(constant)
    given = methods(template.node, template.text)
    wanted = [
        "load",
        "encode",
        *(name for kind, (_, name) in READERS.items() if kind in modalities),
    ]
    own = [_constructor(model, members, sources)]
    own += [given[name] for name in wanted[:1]]
    own += [embed_method(model, part, members) for part in model.encodings]
    for name in wanted[1:]:
        kind = next((kind for kind, (_, each) in READERS.items() if each == name), "")
        default = f'field: str = "{modalities[kind]}",' if kind else "field: str,"
        own.append(given[name].replace("field: str,", default))
    own.append(_scores(model))
    what = " and ".join(f"`{part.name}`" for part in model.encodings)
    doc = f'"""Encodes {what}; parameters are named as in training, with dots."""'
    return "\n\n".join([f"class RetrievalModel(nn.Module):\n    {doc}", *own])


def _constructor(model: Exported, members: list[Member], sources: SourceFiles) -> str:
    lines = ["    def __init__(self, folder: Path) -> None:", "        super().__init__()"]
    fields = {part.name for part in model.encodings}
    for member in members:
        if member.name in fields and member.path.startswith("config.fields."):
            continue
        lines.append(construction(f"self.{member.name} = ", member.form, sources))
    if "text" in model.modalities:
        file = ('folder / "tokenizer.json"',)
        lines.append(construction("self.tokenizer = ", tokenizer_form(model), sources, file))
    if scalars := below(model.params, f"{SCALARS}/"):
        lines.append(
            "        # What training has learned beside, such as the logarithm of a scale."
        )
        lines.append(_scalars(scalars))
    return "\n".join(lines)


def construction(
    head: str, form: TorchForm, sources: SourceFiles, first: tuple[str, ...] = ()
) -> str:
    """`self.image = VisionTransformer(...)`, without what the class has as its defaults."""
    defaults = sources.defaults(form.name)  # some classes name no arguments
    order = [name for name in defaults if name in form.arguments]
    order += [name for name in form.arguments if name not in defaults]
    kept = [name for name in order if form.arguments[name] != defaults.get(name, ...)]
    items = [*first, *(f"{name}={literal(form.arguments[name])}" for name in kept)]
    return call(f"{head}{form.name}", items, 8)


def tokenizer_form(model: Exported) -> TorchForm:
    """How the tokenizer of the generated module is made."""
    facts = model.tokenizer.frame()
    if model.tokenizer.clean:
        facts["clean"] = Code(CLEANERS[model.tokenizer.clean])
    return TorchForm("Tokenizer", facts)


def _scalars(scalars: Flat) -> str:
    """Parameters of losses, by the loss's name."""
    losses: dict[str, dict[str, Any]] = {}
    for path, x in scalars.items():
        loss, _, name = path.partition("/")
        losses.setdefault(loss, {})[name] = Code(f"torch.zeros({tuple(x.shape)})")
    entries = [f"{literal(loss)}: nn.ParameterDict({literal(x)})" for loss, x in losses.items()]
    return call(f"self.{SCALARS} = nn.ModuleDict", ["{" + ", ".join(entries) + "}"], 8)


def embed_method(model: Exported, part: Encoding, members: list[Member]) -> str:
    """The method that makes embeddings of the arrays of a field."""
    forms = {member.path: member.form for member in members}
    heads = {member.name: member.form for member in members}
    owner = part.field.shares_head or part.name
    field, head = forms[f"config.fields.{part.name}"], heads[f"{owner}_head"]
    arrays = [*field.call]
    lines = [call(f"def embed_{part.name}", ["self", *(f"{a}: torch.Tensor" for a in arrays)], 4)]
    lines[0] += " -> torch.Tensor:"
    lines.append(f'        """{_shapes(model, part, arrays)}"""')
    inputs = arrays
    if field.name:
        keywords = [f"{name}={literal(value)}" for name, value in field.arguments.items()]
        lines.append(call(f"inputs = {field.name}", [*arrays, *keywords], 8))
        inputs = ["inputs"]
    lines.append(call(f"tokens = self.{part.tower_name}", inputs, 8))
    lacking = {"mask", "ids"} - set(arrays)
    given = [x for x in head.call if x.rpartition("=")[2] not in lacking]
    items = [x.replace("{field}", part.name) for x in given]
    if part.head.lexical:
        lines.append(call(f"return self.{owner}_head", items, 8))
    else:
        lines.append(call(f"raw = self.{owner}_head", items, 8))
        lines.append("        return self.topology.project(raw)")
    return "\n".join(lines)


def _shapes(model: Exported, part: Encoding, arrays: list[str]) -> str:
    """Arrays [n, ...] -> embeddings [n, ...]."""
    given = part.field.shapes()
    length = (part.field.length,)
    said = [
        f"{name} {dtype} [{', '.join(['n', *(['L'] if shape == length else map(str, shape))])}]"
        for name, (shape, dtype) in ((name, given[name]) for name in arrays)
    ]
    size = model.tokenizer.vocab_size
    shape = part.head.embedding_shape(model.config, part.name, size)
    out = shape[1:] if part.head.lexical else shape
    text = f"{' and '.join(said)} -> {['n', *out]}.".replace("'n'", "n")
    return text[0].upper() + text[1:]


def _scores(model: Exported) -> str:
    lexical = [part.head.lexical for part in model.encodings]
    lines = ["    def scores(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:"]
    lines.append(
        '        """Scores [rows, columns] of embeddings [rows, ...] and [columns, ...]."""'
    )
    if all(lexical):
        lines.append("        return a @ b.T")
    elif any(lexical):
        lines.append("        return a @ b.T if a.ndim == 2 else self.topology.score(a, b)")
    else:
        lines.append("        return self.topology.score(a, b)")
    return "\n".join(lines)
