"""Masked-language heads and SPLADE folders: saved by their library, lexical encoders here."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.config import Config, Head, Init, Lexical, TextField
from big_retrieval.errors import UserError
from big_retrieval.interop import folder
from big_retrieval.interop.initialise import start
from big_retrieval.interop.lexical import as_lexical
from big_retrieval.interop.model import import_model
from big_retrieval.interop.read import read
from big_retrieval.interop.source import Source
from big_retrieval.loading import TrainedModel, load
from big_retrieval.models.towers import RetrievalModel
from big_retrieval.train.optimizer import names_of
from tests.interop.test_towers import TOLERANCE, nested

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.interop.generate import BERT, IDS, MASK, ROBERTA, perturbed  # noqa: E402

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(5, 40))]


def config(name: str, **changes: Any) -> Any:
    return getattr(transformers, f"{name}Config")(**{**BERT, **changes})


def masked(name: str, **changes: Any) -> Any:
    """A small masked-language model whose biases are not 0; the same one at every call."""
    torch.manual_seed(0)
    return perturbed(getattr(transformers, f"{name}ForMaskedLM")(config(name, **changes)))


def distilbert() -> Any:
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 40}
    settings = transformers.DistilBertConfig(**sizes, max_position_embeddings=16)
    return perturbed(transformers.DistilBertForMaskedLM(settings))


MODELS: dict[str, Callable[[], Any]] = {
    "BERT": lambda: masked("Bert"),
    "BERT, tanh": lambda: masked("Bert", hidden_act="gelu_new", layer_norm_eps=1e-3),
    "BERT, a table of its own": lambda: masked("Bert", tie_word_embeddings=False),
    "RoBERTa": lambda: masked("Roberta", **ROBERTA),
    "RoBERTa, ReLU": lambda: masked("Roberta", **ROBERTA, hidden_act="relu"),
    "DistilBERT": distilbert,
    "MPNet": lambda: masked("MPNet", max_position_embeddings=18, pad_token_id=1),
}


def model_of(source: Source) -> tuple[RetrievalModel, Any]:
    """Our model of a lexical checkpoint and its parameters."""
    part = source.parts["text"]
    field = TextField(length=6, head=part.head_config)
    model = RetrievalModel({"text": part.tower}, {"text": field}, "inner", 0)
    flat = {f"text/{path}": x for path, x in part.params.items()}
    flat |= {f"text_head/{path}": x for path, x in part.head.items()}
    return model, nested(flat)


def encoded(model: RetrievalModel, params: Any) -> jax.Array:
    """[B, V] by our model."""
    inputs = {"text": {"ids": jnp.asarray(IDS), "mask": jnp.asarray(MASK, bool)}}
    reps: Any = model.apply({"params": params}, inputs)
    return reps.points["text"][:, 0]


def splade(theirs: Any, ids: np.ndarray = IDS, mask: np.ndarray = MASK) -> Any:
    """The same by torch: log(1 + relu) of the largest logit among the tokens."""
    logits = theirs(torch.tensor(ids), attention_mask=torch.tensor(mask)).logits
    values = torch.log1p(torch.relu(logits))
    return values.masked_fill(torch.tensor(mask)[:, :, None] == 0, 0.0).amax(1)


@pytest.mark.parametrize("name", MODELS)
def test_as_torch_has_it(name: str, tmp_path: Path) -> None:
    theirs = MODELS[name]()
    theirs.save_pretrained(tmp_path)
    plain = read(str(tmp_path))
    assert plain.unknown == []
    assert plain.parts["text"].head_config == Head(dim=None)
    assert any("dense" in each or "vocab_transform" in each for each in plain.unused)
    source = as_lexical(plain)
    assert source.unused == []
    part = source.parts["text"]
    assert part.lexical is not None
    assert part.lexical.tied == (name != "BERT, a table of its own")
    with torch.no_grad():
        expected = splade(theirs).numpy()
    assert (expected > 0.1).mean() > 0.2
    np.testing.assert_allclose(encoded(*model_of(source)), expected, **TOLERANCE)


def test_gradients_of_bert(tmp_path: Path) -> None:
    theirs = MODELS["BERT"]()
    theirs.save_pretrained(tmp_path)
    source = as_lexical(read(str(tmp_path)))
    part = source.parts["text"]
    weights = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)
    (splade(theirs) * torch.tensor(weights)).sum().backward()
    gradients = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    own = {name.removeprefix("bert."): x for name, x in gradients.items()}
    expected = {f"text/{path}": x for _, path, x in part.kind.table.to_ours(own)}
    assert part.kind.masked is not None
    head = part.kind.masked.table.to_ours(gradients)
    expected |= {f"text_head/{path}": x for _, path, x in head}
    model, params = model_of(source)
    found = jax.grad(lambda params: jnp.sum(encoded(model, params) * weights))(params)
    names = names_of(found)
    assert set(names) == set(expected)
    for path, value in expected.items():
        scale = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(names[path] / scale, value / scale, atol=1e-5, err_msg=path)


@pytest.mark.parametrize("name", ["BERT", "RoBERTa", "DistilBERT", "MPNet"])
def test_tables_read_both_ways(name: str, tmp_path: Path) -> None:
    theirs = MODELS[name]()
    theirs.save_pretrained(tmp_path)
    part = as_lexical(read(str(tmp_path))).parts["text"]
    assert part.kind.masked is not None
    back = part.kind.masked.table.to_theirs(part.head)
    state = {key: value.numpy() for key, value in theirs.state_dict().items()}
    assert len(back) == 5
    for key, value in back.items():
        np.testing.assert_array_equal(value, state[key], err_msg=key)


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


OLD = ("sparse_encoder.models.MLMTransformer", "sparse_encoder.models.SpladePooling")
NEW = (
    "base.modules.transformer.Transformer",
    "sparse_encoder.modules.splade_pooling.SpladePooling",
)


def splade_folder(root: Path, types: tuple[str, str], **pooling: Any) -> Path:
    """A SPLADE model as sentence-transformers saves it, with a tokenizer."""
    masked("Bert").save_pretrained(root)
    (root / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    places = zip(("", "1_SpladePooling"), types, strict=True)
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.{kind}"}
        for n, (path, kind) in enumerate(places)
    ]
    (root / "modules.json").write_text(json.dumps(modules))
    new = "modules" in types[1]
    size = "embedding_dimension" if new else "word_embedding_dimension"
    told = {"pooling_strategy": "max", "activation_function": "relu", size: 40, **pooling}
    write(root / "1_SpladePooling" / "config.json", told)
    inner = {"transformer_task": "fill-mask"} if new else {"max_seq_length": 16}
    write(root / "sentence_bert_config.json", inner)
    write(root / "config_sentence_transformers.json", {"model_type": "SparseEncoder"})
    return root


def test_splade_folders_of_old_and_new_versions(tmp_path: Path) -> None:
    sources = [
        read(str(splade_folder(tmp_path / name, types)))
        for name, types in (("old", OLD), ("new", NEW))
    ]
    old, new = (source.parts["text"] for source in sources)
    assert old.lexical == new.lexical == dataclasses.replace(
        Lexical(), transform="gelu", use_bias=True, epsilon=1e-12
    )  # fmt: skip
    assert old.tower == new.tower
    for a, b in ((old.params, new.params), (old.head, new.head)):
        assert a.keys() == b.keys()
        for path in a:
            np.testing.assert_array_equal(a[path], b[path])
    with torch.no_grad():
        expected = splade(masked("Bert")).numpy()
    np.testing.assert_allclose(encoded(*model_of(sources[1])), expected, **TOLERANCE)


def test_splade_with_two_logarithms(tmp_path: Path) -> None:
    source = read(str(splade_folder(tmp_path, OLD, activation_function="log1p_relu")))
    with torch.no_grad():
        expected = torch.log1p(splade(masked("Bert"))).numpy()
    np.testing.assert_allclose(encoded(*model_of(source)), expected, **TOLERANCE)


def test_what_a_splade_model_drops_is_told(tmp_path: Path) -> None:
    """The largest so many columns alone: a setting of the encoder, which ours has not."""
    path = splade_folder(tmp_path, NEW) / "config_sentence_transformers.json"
    write(path, {"model_type": "SparseEncoder", "max_active_dims": 7})
    assert read(str(tmp_path)).unused == ["max_active_dims of config_sentence_transformers.json"]


@pytest.mark.parametrize(
    ("pooling", "words"),
    [
        ({"pooling_strategy": "sum"}, ["pooling_strategy is 'sum'", "'max'"]),
        ({"activation_function": "gelu"}, ["activation_function is 'gelu'", "log1p_relu"]),
    ],
)
def test_splade_that_no_head_of_ours_is(
    tmp_path: Path, pooling: dict[str, str], words: list[str]
) -> None:
    splade_folder(tmp_path, OLD, **pooling)
    with pytest.raises(UserError) as problem:
        read(str(tmp_path))
    assert all(word in str(problem.value) for word in words), problem.value


def test_splade_with_other_modules(tmp_path: Path) -> None:
    splade_folder(tmp_path, OLD)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "", "type": "sentence_transformers.X.Router"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match="has Router beside SpladePooling"):
        read(str(tmp_path))


def bert_folder(root: Path) -> Path:
    """A masked-language model with a tokenizer."""
    masked("Bert").save_pretrained(root)
    (root / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    return root


def test_imported_written_and_loaded(tmp_path: Path) -> None:
    said: list[str] = []
    model = import_model(str(bert_folder(tmp_path / "bert")), head="lexical", say=said.append)
    assert model.config.topology == "inner"
    assert any("lexical, log1p_relu" in line for line in said)
    assert not any("left out" in line for line in said)
    texts = ["w7 w9", "w30"]
    ids = np.array([[2, 7, 9, 3], [2, 30, 3, 0]])
    with torch.no_grad():
        expected = splade(masked("Bert"), ids, np.array([[1, 1, 1, 1], [1, 1, 1, 0]])).numpy()
    np.testing.assert_allclose(model.encode_texts(texts)[:, 0], expected, **TOLERANCE)
    folder.write(model, tmp_path / "ours")
    again = load(tmp_path / "ours")
    np.testing.assert_array_equal(again.encode_texts(texts), model.encode_texts(texts))
    own = read(str(tmp_path / "ours")).parts["text"]
    assert own.lexical == model.config.fields["text"].head
    assert set(own.head) == {"dense/kernel", "dense/bias", "ln/scale", "ln/bias", "bias"}


def test_without_being_asked_the_masked_language_head_is_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    model = import_model(str(bert_folder(tmp_path)), say=said.append)
    assert model.encode_texts(["w7"]).shape == (1, 1, 32)
    (left,) = [line for line in said if "left out" in line]
    assert "cls.predictions.bias" in left
    assert "cls.predictions.transform.dense.weight" in left


def test_no_masked_language_head(tmp_path: Path) -> None:
    perturbed(transformers.BertModel(config("Bert"))).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    with pytest.raises(UserError, match="no masked-language head"):
        import_model(str(tmp_path), head="lexical")
    with pytest.raises(UserError, match="does not go with a lexical head"):
        import_model(str(tmp_path), head="lexical", pool="mean")


def started_from(path: Path, **head: Any) -> tuple[Config, TrainedModel]:
    """The config of a run with two fields that starts from a folder, and the model in it."""
    model = import_model(str(path), head="lexical")
    fields = {
        name: dataclasses.replace(field, head=dataclasses.replace(field.head, **head))
        for name, field in model.config.fields.items()
    }
    changed = dataclasses.replace(model.config, fields=fields, init={"text": Init(str(path))})
    return changed, model


def test_a_run_starts_from_it(tmp_path: Path) -> None:
    """A masked-language model, a SPLADE model, and a run of ours."""
    bert = bert_folder(tmp_path / "bert")
    c, model = started_from(bert, activation="elu1p")
    expected = names_of(model.weights)
    shapes = {path: x.shape for path, x in expected.items()}
    folder.write(model, tmp_path / "ours")
    for path in (bert, splade_folder(tmp_path / "splade", OLD), tmp_path / "ours"):
        found = start(dataclasses.replace(c, init={"text": Init(str(path))}), shapes, {})
        assert set(found.params) == set(expected) - {"scalars/temperature"}
        for name, value in found.params.items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)
        assert not any("anew" in note or "of no use" in note for note in found.notes)
        assert sum("head: the lexical head of" in note for note in found.notes) == 2


def test_heads_that_start_anew_or_do_not_fit(tmp_path: Path) -> None:
    c, model = started_from(bert_folder(tmp_path))
    shapes = {path: x.shape for path, x in names_of(model.weights).items()}
    anew = start(dataclasses.replace(c, init={"text": Init(str(tmp_path), head=False)}), shapes, {})
    assert "text_head starts anew" in anew.notes
    assert not any(path.startswith("text_head") for path in anew.params)
    assert any("cls.predictions.bias" in note for note in anew.notes)
    other, _ = started_from(tmp_path, transform="relu", use_bias=False)
    with pytest.raises(UserError) as problem:
        start(other, shapes, {})
    for word in ("config.fields", "transform relu", "head.use_bias=True", "init.text.head=False"):
        assert word in str(problem.value)
