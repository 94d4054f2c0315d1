"""Masked-language heads and SPLADE folders become lexical encoders with their library's values.

The values are in data/, written by `python -m tests.interop.generate`.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from big_retrieval.config import Bert, Config, Init, Lexical, Projection, TextField
from big_retrieval.errors import UserError
from big_retrieval.inference.load import TrainedModel, load
from big_retrieval.interop.initial_weights import read_initial_weights
from big_retrieval.interop.lexical import as_lexical
from big_retrieval.interop.model import import_model
from big_retrieval.interop.read import read
from big_retrieval.interop.source import CheckpointContents
from big_retrieval.models.towers import RetrievalModel
from big_retrieval.sparse.terms import terms_of_size
from big_retrieval.train.checkpoint import write_model
from big_retrieval.train.optimizer import names_of
from tests.interop.folders import DATA, NEW, OLD, change, masked_bert, splade
from tests.interop.test_towers import TOLERANCE, nested

MODELS = (
    "masked_bert",
    "masked_bert_tanh",
    "masked_bert_untied",
    "masked_roberta",
    "masked_roberta_relu",
    "masked_distilbert",
    "masked_mpnet",
)


def expected(name: str = "masked_bert") -> dict[str, np.ndarray]:
    """Ids, mask, and log(1 + relu) of the largest logit among the tokens; gradients for BERT."""
    with np.load(DATA / name / "expected.npz") as file:
        return dict(file)


def model_of(source: CheckpointContents) -> tuple[RetrievalModel, Any]:
    """Our model of a lexical checkpoint and its parameters."""
    part = source.parts["text"]
    field = TextField(length=6, head=part.head_config)
    assert isinstance(part.tower, Bert)
    assert part.tower.vocab_size is not None
    terms = {"text": terms_of_size("all", part.tower.vocab_size)}
    model = RetrievalModel({"text": part.tower}, {"text": field}, "inner", 0, terms)
    params = {f"text/{path}": x for path, x in part.params.items()}
    params |= {f"text_head/{path}": x for path, x in part.head.items()}
    return model, nested(params)


def encode(model: RetrievalModel, params: Any, inputs: dict[str, np.ndarray]) -> jax.Array:
    """[B, V] by our model."""
    arrays = {"ids": jnp.asarray(inputs["ids"]), "mask": jnp.asarray(inputs["mask"], bool)}
    reps: Any = model.apply({"params": params}, {"text": arrays})
    return reps.embeddings["text"][:, 0]


@pytest.mark.parametrize("name", MODELS)
def test_lexical_encoders_compute_what_torch_does(name: str) -> None:
    plain = read(str(DATA / name))
    assert plain.unknown == []
    assert plain.parts["text"].head_config == Projection(dim=None)
    assert any("dense" in x or "vocab_transform" in x for x in plain.unused)
    source = as_lexical(plain)
    part = source.parts["text"]
    assert source.unused == []
    assert part.lexical is not None
    assert part.lexical.tied == (name != "masked_bert_untied")
    values = expected(name)
    assert (values["out"] > 0.1).mean() > 0.2
    np.testing.assert_allclose(encode(*model_of(source), values), values["out"], **TOLERANCE)
    assert part.kind.masked is not None
    saved = load_file(DATA / name / "model.safetensors")
    written = part.kind.masked.table.to_source(part.head)
    assert len(written) == 5 + (not part.lexical.tied)
    if not part.lexical.tied:  # the decoder has the bias
        saved["cls.predictions.bias"] = saved["cls.predictions.decoder.bias"]
    for key, value in written.items():
        np.testing.assert_array_equal(value, saved[key], err_msg=key)


def test_lexical_encoder_has_gradients_of_torch() -> None:
    source, values = as_lexical(read(str(DATA / "masked_bert"))), expected()
    part = source.parts["text"]
    gradients = {k.removeprefix("grad."): x for k, x in values.items() if k.startswith("grad.")}
    assert part.kind.masked is not None
    tower = {name.removeprefix("bert."): x for name, x in gradients.items()}
    wanted = {f"text/{path}": x for _, path, x in part.kind.table.to_jax(tower)}
    head = part.kind.masked.table.to_jax(gradients)
    wanted |= {f"text_head/{path}": x for _, path, x in head}
    model, params = model_of(source)

    def loss(params: Any) -> jax.Array:
        return jnp.sum(encode(model, params, values) * values["weights"])

    found = names_of(jax.jit(jax.grad(loss))(params))
    assert set(found) == set(wanted)
    for path, value in wanted.items():
        scale = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(found[path] / scale, value / scale, atol=1e-5, err_msg=path)


def test_splade_folders_of_old_and_new_versions_are_the_same(tmp_path: Path) -> None:
    old, new = (read(str(splade(tmp_path / str(len(x[0])), x))) for x in (OLD, NEW))
    a, b = old.parts["text"], new.parts["text"]
    head = dataclasses.replace(Lexical(), transform="gelu", use_bias=True, epsilon=1e-12)
    assert a.lexical == b.lexical == head
    assert a.tower == b.tower
    for one, two in ((a.params, b.params), (a.head, b.head)):
        assert one.keys() == two.keys()
        for path in one:
            np.testing.assert_array_equal(one[path], two[path])
    values = expected()
    np.testing.assert_allclose(encode(*model_of(new), values), values["out"], **TOLERANCE)


def test_splade_with_two_logarithms(tmp_path: Path) -> None:
    source = read(str(splade(tmp_path, OLD, activation_function="log1p_relu")))
    values = expected()
    found = encode(*model_of(source), values)
    np.testing.assert_allclose(found, np.log1p(values["out"]), **TOLERANCE)


def test_import_reads_max_active_dims_as_gate(tmp_path: Path) -> None:
    folder = splade(tmp_path)
    change(folder / "config_sentence_transformers.json", max_active_dims=7)
    head: Any = read(str(folder)).parts["text"].lexical
    assert (head.top_k, head.keep_input_terms) == (7, False)


def test_splade_with_other_modules_is_rejected(tmp_path: Path) -> None:
    modules = splade(tmp_path) / "modules.json"
    router = {"idx": 2, "name": "2", "path": "", "type": "sentence_transformers.X.Router"}
    modules.write_text(json.dumps([*json.loads(modules.read_text()), router]))
    with pytest.raises(UserError, match="SpladePooling, Router"):
        read(str(tmp_path))


def test_lexical_import_is_written_and_loaded(tmp_path: Path, said: list[str]) -> None:
    model = import_model(str(masked_bert(tmp_path / "bert")), head="lexical")
    assert model.config.topology == "inner"
    assert any("lexical, log1p_relu" in line for line in said)
    assert not any("not imported" in line for line in said)
    texts, values = ["w7 w9", "w30"], expected()
    assert values["short_ids"].tolist() == [[2, 7, 9, 3], [2, 30, 3, 0]]
    embeddings: Any = model.encode_texts(texts)
    np.testing.assert_allclose(embeddings.toarray(), values["short_out"], **TOLERANCE)
    write_model(model, tmp_path / "run")
    again: Any = load(tmp_path / "run").encode_texts(texts)
    np.testing.assert_array_equal(again.toarray(), embeddings.toarray())
    part = read(str(tmp_path / "run")).parts["text"]
    assert part.lexical == model.config.fields["text"].head
    assert set(part.head) == {"dense/kernel", "dense/bias", "ln/scale", "ln/bias", "bias"}


def test_import_leaves_the_masked_language_head_out_by_default(
    tmp_path: Path, said: list[str]
) -> None:
    model = import_model(str(masked_bert(tmp_path)))
    assert model.encode_texts(["w7"]).shape == (1, 1, 32)
    (message,) = [line for line in said if "not imported" in line]
    assert "cls.predictions.bias" in message
    assert "cls.predictions.transform.dense.weight" in message
    with pytest.raises(UserError, match=r"pool 'mean' does not fit .*lexical head"):
        import_model(str(tmp_path), head="lexical", pool="mean")


def test_lexical_import_needs_a_masked_language_head(tmp_path: Path) -> None:
    file = masked_bert(tmp_path, "bert") / "model.safetensors"
    weight = np.ones((32, 32), np.float32)
    pooler = {"pooler.dense.weight": weight, "pooler.dense.bias": weight[0]}
    save_file({**load_file(file), **pooler}, file)
    with pytest.raises(UserError, match="no masked-language head"):
        import_model(str(tmp_path), head="lexical")


def started_from(path: Path, **head: Any) -> tuple[Config, TrainedModel]:
    """The config of a run with two fields that starts from a folder, and the model in it."""
    model = import_model(str(path), head="lexical")
    fields = {
        name: dataclasses.replace(field, head=dataclasses.replace(field.head, **head))
        for name, field in model.config.fields.items()
    }
    changed = dataclasses.replace(model.config, fields=fields, init={"text": Init(str(path))})
    return changed, model


def test_run_starts_from_masked_model_splade_or_run(tmp_path: Path) -> None:
    bert = masked_bert(tmp_path / "bert")
    config, model = started_from(bert, activation="elu1p")
    wanted = names_of(model.weights)
    shapes = {path: x.shape for path, x in wanted.items()}
    write_model(model, tmp_path / "run")
    for path in (bert, splade(tmp_path / "splade", OLD), tmp_path / "run"):
        config = dataclasses.replace(config, init={"text": Init(str(path))})
        weights = read_initial_weights(config, shapes, {})
        assert set(weights.params) == set(wanted) - {"scalars/main/logit_scale"}
        for name, value in weights.params.items():
            np.testing.assert_array_equal(value, wanted[name], err_msg=name)
        assert not any("randomly" in note or "not used" in note for note in weights.notes)
        assert sum("_head: lexical head" in note for note in weights.notes) == 2


def test_run_may_start_with_a_random_lexical_head_but_not_another(tmp_path: Path) -> None:
    config, model = started_from(masked_bert(tmp_path))
    shapes = {path: x.shape for path, x in names_of(model.weights).items()}
    random = dataclasses.replace(config, init={"text": Init(str(tmp_path), head=False)})
    weights = read_initial_weights(random, shapes, {})
    assert "text_head starts randomly" in weights.notes
    assert not any(path.startswith("text_head") for path in weights.params)
    assert any("cls.predictions.bias" in note for note in weights.notes)
    other, _ = started_from(tmp_path, transform="relu", use_bias=False)
    with pytest.raises(UserError) as error:
        read_initial_weights(other, shapes, {})
    for word in ("config.fields", "transform relu", "head.use_bias=True", "init.text.head=False"):
        assert word in str(error.value)


@dataclasses.dataclass(frozen=True)
class LexicalSubclass(Lexical):
    """Head of a user, with the parameters of `Lexical`."""


def test_init_compares_keys_of_subclasses_of_heads(tmp_path: Path) -> None:
    config, model = started_from(masked_bert(tmp_path), epsilon=0.5)
    fields = {
        name: dataclasses.replace(field, head=LexicalSubclass(**vars(field.head)))
        for name, field in config.fields.items()
    }
    config = dataclasses.replace(config, fields=fields)
    shapes = {path: x.shape for path, x in names_of(model.weights).items()}
    with pytest.raises(UserError, match=r"head differs .*epsilon 0.5"):
        read_initial_weights(config, shapes, {})
