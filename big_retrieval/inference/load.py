"""Trained models, loaded from their checkpoint folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from big_retrieval import parallel
from big_retrieval.config import Config, Field, registry
from big_retrieval.config.topologies import topology_part
from big_retrieval.data.build import make_readers
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.in_memory import Values, refuse_unordered
from big_retrieval.data.pipeline import eval_batches
from big_retrieval.data.sources import TextRecords
from big_retrieval.data.text.tokenizers import FixedLengthTokenizer
from big_retrieval.errors import UserError
from big_retrieval.inference.encoder import Embeddings, Encoder
from big_retrieval.inference.saved import read_config, read_from, restore_weights
from big_retrieval.models.towers import make_model
from big_retrieval.sparse.terms import Terms


@dataclass(frozen=True)
class TrainedModel:
    """Model of a checkpoint, with its tokenizer and preprocessing."""

    folder: Path
    config: Config
    tokenizer: FixedLengthTokenizer
    # Parameters, or their running average if the run has one; running averages of batch norms are
    # under `batch_stats`
    weights: Any
    encoder: Encoder  # encodes on this machine's devices

    def __repr__(self) -> str:
        fields = [f"{name} ({x.modality}, {x.side})" for name, x in self.config.encoded.items()]
        count = sum(np.size(leaf) for leaf in jax.tree.leaves(self.weights))
        return f"<model of {self.folder}: {', '.join(fields)}; {count:,} parameters>"

    def encode_texts(
        self,
        texts: str | Sequence[str],
        field: str = "text",
        titles: Sequence[str] = (),
        progress: bool | None = None,
    ) -> Embeddings:
        """Encodes texts to embeddings [n, M, N], or to gated CSR [n, V] if the field is lexical.

        Args:
          texts: n texts, or a single text (n = 1).
          titles: n titles if the field has titles; empty for none.
          progress: True for a bar if encoding takes long; None shows it on terminals only.

        Raises:
          UserError: there are no texts, the text field is missing, or the titles do not fit.
        """
        field_config: Any = self._field(field)
        if field_config.modality != "text":
            raise UserError(
                f"Field {field!r} has the type {field_config.type!r}, not text. Name a text field "
                "by field=..., or use `encode(values, field)`."
            )
        texts = _texts(texts, field)
        # Texts of similar length share a block.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        if titles and not getattr(field_config, "title", ""):
            raise UserError(f"Field {field!r} has no titles. Remove `titles`.")
        if titles and (isinstance(titles, str) or len(titles) != len(texts)):
            raise UserError(f"{len(texts)} texts need a list of {len(texts)} titles, or no titles.")
        ordered = TextRecords(
            [texts[i] for i in order],
            column=field_config.column,
            titles=[titles[i] for i in order] if titles else (),
        )
        embeddings, records = self._encode(ordered, field, progress)
        return embeddings[np.argsort(np.asarray(order)[records])]

    def encode_images(
        self, images: Any, field: str = "image", progress: bool | None = None
    ) -> Embeddings:
        """Encodes images to embeddings as in `encode_texts`.

        Args:
          images: n paths, contents of files as bytes, PIL images or uint8 arrays [H, W, 3]; or a
            single one.
        """
        if self._field(field).modality == "text":
            raise UserError(f"Field {field!r} is a text field. Name an image field.")
        return self.encode(images, field, progress)

    def encode(self, values: Sequence[Any], field: str, progress: bool | None = None) -> Embeddings:
        """Encodes values of any field: texts, images, arrays, or input of a user-defined field.

        Row i of the result is value i. Raises a UserError if a value is empty or cannot be read.
        """
        if self._field(field).modality == "text":
            return self.encode_texts(values, field, progress=progress)
        source = self._in_memory(values, field)
        embeddings, records = self._encode(source, field, progress)
        missing = set(range(len(source))) - set(records.tolist())
        if missing:
            raise UserError(f"Value {min(missing)} for field {field!r} is empty. Remove it.")
        return embeddings

    def features(self, values: Sequence[Any], field: str, layer: str | int | None = "final") -> Any:
        """Computes activations [n, ...] of a tower's layer; see `Encoder.features`."""
        source = self._in_memory(values, field)
        readers = {field: self._reader(source, field)}
        batches = eval_batches(source, readers, field=field, batch_size=self.encoder.batch_size)
        return self.encoder.features(self.weights, field, batches, layer)[0]

    def terms(self, field: str = "text") -> Terms:
        """Returns the word pieces of a lexical field; raises a UserError for other fields."""
        self._field(field)
        terms = self.encoder.terms(field)
        if terms is None:
            raise UserError(f"Field {field!r} has no lexical head, so no terms.")
        return terms

    def score(self, a: Embeddings, b: Embeddings) -> np.ndarray:
        """Scores embeddings [rows, ...] with embeddings [columns, ...]: [rows, columns].

        Higher is closer. Scores are not multiplied by the logit scale.
        """
        for name, value in (("first", a), ("second", b)):
            if not hasattr(value, "shape") and not isinstance(value, list | tuple):
                raise UserError(
                    f"The {name} argument is {value!r:.80}. Use embeddings from encode_texts, "
                    "encode_images or encode."
                )
        if scipy.sparse.issparse(a) != scipy.sparse.issparse(b):
            raise UserError("Cannot compare embeddings of a lexical field and a dense field.")
        if scipy.sparse.issparse(a):
            return (a @ b.T).toarray()
        return np.asarray(topology_part(self.config.topology).score(jnp.asarray(a), jnp.asarray(b)))

    def _field(self, field: str) -> Field:
        if field not in self.config.encoded:
            available = ", ".join(sorted(self.config.encoded))
            raise UserError(f"The model has no field {field!r}. Use field=... with: {available}.")
        return self.config.fields[field]

    def _in_memory(self, values: Sequence[Any], field: str) -> Any:
        field_config = self._field(field)
        if field_config.modality == "text":
            return TextRecords(_texts(values, field), column=field_config.column)
        return Values(values, field_config)

    def _encode(
        self, source: Any, field: str, progress: bool | None
    ) -> tuple[Embeddings, np.ndarray]:
        reader = self._reader(source, field)
        return self.encoder.encode(self.weights, field, source, reader, progress=progress)

    def _reader(self, source: Any, field: str) -> FieldReader:
        if not len(source):
            raise UserError(f"Nothing to encode: no value for field {field!r}.")
        return make_readers(self.config, self.tokenizer)[field]


def _texts(values: Any, field: str) -> list[str]:
    """Converts a text or texts to a list; raises a UserError if a value is not a text."""
    refuse_unordered(values, f"values for the field {field!r}")
    try:
        texts = [values] if isinstance(values, str) else list(values)
    except TypeError:
        raise UserError(f"Not a text or a list of texts for field {field!r}: {values!r}.") from None
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(
                f"Value {index} for field {field!r} is {text!r}. Use a text, or '' if missing."
            )
    return texts


def load(
    path: str | Path,
    *,
    step: int | None = None,
    batch_size: int = 64,
    plugins: Sequence[str | Path] = (),
) -> TrainedModel:
    """Loads a model from a run folder, a folder of checkpoints or one checkpoint folder.

    Every checksum is verified first; nothing is unpickled.

    Args:
      step: step of the checkpoint. None for the checkpoint of results.json if the run is finished
        (the last one unless `config.final_weights` is "best"), else for the newest intact one.
      batch_size: maximum number of rows encoded at a time; CPUs use fewer for long texts.
      plugins: Python files that define parts of the model; a checkpoint never imports anything by
        itself. User-defined evaluators are only needed to evaluate.

    Raises:
      UserError: no checkpoint can be used, or a plugin cannot be imported.
    """
    for plugin in plugins:
        registry.import_file(Path(plugin))
    return put_together(*read_from(path, _read, step), batch_size)


def load_verified(folder: Path, batch_size: int = 64) -> TrainedModel:
    """Loads a checkpoint folder that `saved.find` has verified."""
    return put_together(*_read(folder), batch_size)


def _read(folder: Path) -> tuple[Path, Config, FixedLengthTokenizer, Any]:
    config = read_config(folder)
    tokenizer = FixedLengthTokenizer.load(folder / "tokenizer.json")
    return folder, config, tokenizer, restore_weights(folder, config)


def put_together(
    folder: Path, config: Config, tokenizer: FixedLengthTokenizer, weights: Any, batch_size: int
) -> TrainedModel:
    """Copies a model to all devices of this process; the mesh of its config is not used."""
    mesh = parallel.local_mesh()
    model = make_model(config, tokenizer.vocab_size, tokenizer)
    weights = jax.device_put(weights, parallel.replicated(mesh))
    return TrainedModel(folder, config, tokenizer, weights, Encoder(model, mesh, batch_size))
