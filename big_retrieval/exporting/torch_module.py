"""Source of the model.py that `--to=torch` writes: needed files of `pytorch`, and a class."""

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from big_retrieval import __version__
from big_retrieval.config.topologies import topology_part
from big_retrieval.data.text import split_words
from big_retrieval.exporting.parts import Encoding, Exported
from big_retrieval.exporting.torch_forms import TorchContext, TorchForm, torch_form
from big_retrieval.interop.source import below
from big_retrieval.io.manifest import run_folder
from big_retrieval.models.towers import lexical_terms

FOLDER = Path(__file__).parent / "pytorch"  # read, not imported: its files need PyTorch
PACKAGE = "big_retrieval.exporting.pytorch."
CLEANERS = {"": "str", "clip": "clip_text", "words": "clean_words"}  # cleaning -> function
SCALARS = "scalars"  # parameters of losses, such as logit scales
READERS = {"text": ("TEXTS", "encode_texts"), "image": ("IMAGES", "encode_images")}


@dataclass(frozen=True)
class Member:
    """A module of the generated class; `path` is its config, such as `config.towers.text`."""

    name: str
    path: str
    part: Any
    context: TorchContext

    @property
    def is_field(self) -> bool:
        """True for a field, which is not a module and may have the name of a tower."""
        return self.path == f"config.fields.{self.name}"

    @functools.cached_property
    def form(self) -> TorchForm:
        """PyTorch form of the part."""
        return torch_form(self.part, self.context)


@dataclass(frozen=True)
class Embedding:
    """Modules with which the generated class embeds the arrays of a field."""

    field: TorchForm  # its `call` lists the arrays
    tower: str  # attribute
    head: str  # attribute
    arguments: tuple[str, ...]  # of the head: Python expressions


def members_of(model: Exported) -> Iterator[Member]:
    """Yields the towers, heads, fields (with their fields' names) and the topology of a model."""
    names = set()
    for encoding in model.encodings:
        head = head_name(encoding)
        if encoding.tower_name not in names:
            shapes = {path: x.shape for path, x in encoding.params.items()}
            path = f"config.towers.{encoding.tower_name}"
            yield Member(encoding.tower_name, path, encoding.tower, TorchContext(shapes))
        if head not in names:
            context = _head_context(model, encoding)
            yield Member(head, f"config.fields.{encoding.name}.head", encoding.head, context)
        names |= {encoding.tower_name, head}
        yield Member(
            encoding.name, f"config.fields.{encoding.name}", encoding.field, TorchContext()
        )
    topology = topology_part(model.config.topology)
    yield Member("topology", "config.topology", topology, TorchContext())


def head_name(encoding: Encoding) -> str:
    """Returns the attribute with the head of an encoder."""
    return f"{encoding.field.shares_head or encoding.name}_head"


def _head_context(model: Exported, encoding: Encoding) -> TorchContext:
    shapes = {path: x.shape for path, x in encoding.head_params.items()}
    terms = lexical_terms(model.config, model.tokenizer.vocab_size, model.tokenizer)
    tables = [path for path in encoding.params if path == encoding.tower.word_table]
    table = {f"{encoding.tower_name}.{path}": encoding.params[path].shape for path in tables}
    return TorchContext(shapes, table, terms.get(encoding.field.shares_head or encoding.name))


def embeddings_of(model: Exported) -> dict[str, Embedding]:
    """Returns the embedding of each field."""
    members = list(members_of(model))
    fields = {member.name: member.form for member in members if member.is_field}
    modules = {member.name: member.form for member in members if not member.is_field}
    embeddings = {}
    for encoding in model.encodings:
        field, name = fields[encoding.name], head_name(encoding)
        missing = {"mask", "ids"} - set(field.call)
        arguments = [x for x in modules[name].call if x.rpartition("=")[2] not in missing]
        arguments = tuple(x.replace("{field}", encoding.name) for x in arguments)
        embeddings[encoding.name] = Embedding(field, encoding.tower_name, name, arguments)
    return embeddings


def source_of(model: Exported) -> str:
    """Returns model.py."""
    members = list(members_of(model))
    modalities = [name for name in READERS if name in model.modalities]
    files = [FOLDER / "model.py", *reader_files(model)]
    files += [_file_of(member.form) for member in members if member.form.name]
    bases = [*(f"{name.title()}Reader" for name in modalities), "TorchModel"]
    lines = [
        f"class RetrievalModel({', '.join(bases)}):",
        f'    """Encodes {", ".join(encoding.name for encoding in model.encodings)}."""',
        "",
        *reader_settings(model, {name: x.field for name, x in embeddings_of(model).items()}),
        "    def __init__(self, folder: Path) -> None:",
        "        super().__init__()",
        *_modules(model, members),
    ]
    for encoding in model.encodings:
        lines += ["", *_embed_method(model, encoding)]
    title = f"{run_folder(model.model.folder).name}: a retrieval model in PyTorch"
    return program(title, 'RetrievalModel.load("FOLDER")', files, lines)


def program(title: str, use: str, files: Iterable[Path], lines: Sequence[str]) -> str:
    """Returns the source of a module: some files, the files that they import, and a class."""
    imports: dict[str, set[str]] = {}
    bodies: list[str] = []
    seen: set[Path] = set()

    def add(path: Path) -> None:
        if path in seen:
            return
        seen.add(path)
        source = path.read_text(encoding="utf-8")
        docstring, *nodes = ast.parse(source).body
        end = docstring.end_lineno
        for node in nodes:
            if isinstance(node, ast.Import):
                imports.setdefault(ast.unparse(node), set())
            elif not isinstance(node, ast.ImportFrom):
                continue
            elif (module := node.module or "").startswith(PACKAGE):
                add(FOLDER / f"{module.removeprefix(PACKAGE)}.py")
            else:
                names = {ast.unparse(name) for name in node.names}
                imports.setdefault(f"from {module} import", set()).update(names)
            end = node.end_lineno
        bodies.append("\n".join(source.splitlines()[end:]).strip())

    for path in files:
        add(path)
    head = f"{title}, written by big_retrieval {__version__}.\n\n    model = {use}"
    first = [f"{key} {', '.join(sorted(names))}".strip() for key, names in sorted(imports.items())]
    parts = [f'"""{head}\n\nREADME.md shows its use.\n"""\n\n' + "\n".join(first), *bodies]
    return "\n\n\n".join([*parts, "\n".join(lines)]) + "\n"


def _file_of(form: TorchForm) -> Path:
    """Returns the file that defines a form's class or function."""
    if form.file:
        return Path(form.file)
    defines = re.compile(rf"^(class|def) {form.name}\b", re.MULTILINE)
    return next(path for path in FOLDER.glob("*.py") if defines.search(path.read_text("utf-8")))


def reader_files(model: Exported) -> list[Path]:
    """Returns the files that read texts and images."""
    files = {"text": FOLDER / "tokens.py", "image": FOLDER / "images.py"}
    word_files = [Path(split_words.__file__)] if model.tokenizer.clean == "words" else []
    return [*word_files, *(path for name, path in files.items() if name in model.modalities)]


def reader_settings(model: Exported, fields: Mapping[str, TorchForm]) -> list[str]:
    """Returns the class attributes with the settings of text and image fields."""
    lines = []
    for modality, (constant, _) in READERS.items():
        names = [
            encoding.name for encoding in model.encodings if encoding.field.modality == modality
        ]
        if names:
            lines.append(f"    {constant} = {{")
            for name in names:
                reads = {key: value for key, value in fields[name].reads.items() if value}
                lines.append(f"        {name!r}: {reads},")
            lines += ["    }", ""]
    return lines


def construction(name: str, arguments: Mapping[str, str], first: str = "") -> list[str]:
    """Returns the lines of `self.image = VisionTransformer(...)`, one argument per line."""
    lines = [f"            {key}={value}," for key, value in arguments.items()]
    if not lines and not first:
        return [f"        {name}()"]
    return [f"        {name}(", *([f"            {first},"] if first else []), *lines, "        )"]


def tokenizer_construction(model: Exported, folder: str) -> list[str]:
    """Returns the lines that create the tokenizer, if the model has texts."""
    if "text" not in model.modalities:
        return []
    arguments = {key: repr(value) for key, value in model.tokenizer.frame().items()}
    arguments["clean"] = CLEANERS[model.tokenizer.clean]
    return construction("self.tokenizer = Tokenizer", arguments, f'{folder} / "tokenizer.json"')


def _modules(model: Exported, members: list[Member]) -> Iterator[str]:
    """Yields the lines of the constructor."""
    for member in members:
        if not member.is_field:
            arguments = {key: repr(value) for key, value in member.form.arguments.items()}
            yield from construction(f"self.{member.name} = {member.form.name}", arguments)
    yield from tokenizer_construction(model, "folder")
    losses: dict[str, dict[str, tuple[int, ...]]] = {}
    for path, x in below(model.params, f"{SCALARS}/").items():
        loss, _, name = path.partition("/")
        losses.setdefault(loss, {})[name] = x.shape
    if losses:
        yield "        # Parameters of losses, such as the logarithm of a scale."
        yield f"        self.{SCALARS} = nn.ModuleDict()"
    for loss, shapes in losses.items():
        zeros = ", ".join(f"{name!r}: torch.zeros({shape})" for name, shape in shapes.items())
        yield f"        self.{SCALARS}[{loss!r}] = nn.ParameterDict({{{zeros}}})"


def _embed_method(model: Exported, encoding: Encoding) -> Iterator[str]:
    """Yields the method that embeds the arrays of a field."""
    embedding = embeddings_of(model)[encoding.name]
    arrays, inputs = embedding.field.call, ", ".join(embedding.field.call)
    yield f"    def embed_{encoding.name}("
    yield f"        self, {', '.join(f'{name}: torch.Tensor' for name in arrays)}"
    yield "    ) -> torch.Tensor:"
    yield f'        """{_shapes(model, encoding, arrays)}"""'
    if embedding.field.name:
        arguments = [f"{key}={value!r}" for key, value in embedding.field.arguments.items()]
        yield f"        inputs = {embedding.field.name}({', '.join([inputs, *arguments])})"
        inputs = "inputs"
    yield f"        tokens = self.{embedding.tower}({inputs})"
    yield f"        raw = self.{embedding.head}({', '.join(embedding.arguments)})"
    yield f"        return {'raw' if encoding.head.lexical else 'self.topology.project(raw)'}"


def _shapes(model: Exported, encoding: Encoding, arrays: Sequence[str]) -> str:
    """Returns the shapes of a field's arrays and of its embeddings."""
    shapes, length = encoding.field.shapes(), (encoding.field.length,)
    inputs = [
        f"{name} {dtype} [{', '.join(['n', *(['L'] if shape == length else map(str, shape))])}]"
        for name, (shape, dtype) in ((name, shapes[name]) for name in arrays)
    ]
    shape = encoding.head.embedding_shape(model.config, encoding.name, model.tokenizer.vocab_size)
    sizes = ", ".join(map(str, shape[1:] if encoding.head.lexical else shape))
    return f"Returns embeddings [n, {sizes}] of {' and '.join(inputs)}."
