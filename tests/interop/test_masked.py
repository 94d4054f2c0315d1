"""Masked-language heads and SPLADE folders: saved by their library, lexical encoders here.

What they computed is in data/, made by `python -m tests.interop.generate`.
"""

import dataclasses
import json
import shutil
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
from tests.interop.test_towers import DATA, TOLERANCE, nested

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(5, 40))]
MODELS = {
    "BERT": "masked_bert",
    "BERT, tanh": "masked_bert_tanh",
    "BERT, a table of its own": "masked_bert_untied",
    "RoBERTa": "masked_roberta",
    "RoBERTa, ReLU": "masked_roberta_relu",
    "DistilBERT": "masked_distilbert",
    "MPNet": "masked_mpnet",
}


def expected(name: str) -> dict[str, np.ndarray]:
    """Ids, mask, and log(1 + relu) of the largest logit among the tokens; gradients for BERT."""
    with np.load(DATA / MODELS[name] / "expected.npz") as file:
        return {key: file[key] for key in file.files}


def lexical(name: str) -> CheckpointContents:
    return as_lexical(read(str(DATA / MODELS[name])))


def model_of(source: CheckpointContents) -> tuple[RetrievalModel, Any]:
    """Our model of a lexical checkpoint and its parameters."""
    part = source.parts["text"]
    field = TextField(length=6, head=part.head_config)
    assert isinstance(part.tower, Bert)
    assert part.tower.vocab_size is not None
    terms = {"text": terms_of_size("all", part.tower.vocab_size)}
    model = RetrievalModel({"text": part.tower}, {"text": field}, "inner", 0, terms)
    flat = {f"text/{path}": x for path, x in part.params.items()}
    flat |= {f"text_head/{path}": x for path, x in part.head.items()}
    return model, nested(flat)


def encoded(model: RetrievalModel, params: Any, given: dict[str, np.ndarray]) -> jax.Array:
    """[B, V] by our model."""
    ids, mask = jnp.asarray(given["ids"]), jnp.asarray(given["mask"], bool)
    reps: Any = model.apply({"params": params}, {"text": {"ids": ids, "mask": mask}})
    return reps.embeddings["text"][:, 0]


@pytest.mark.parametrize("name", MODELS)
def test_as_torch_has_it(name: str) -> None:
    plain = read(str(DATA / MODELS[name]))
    assert plain.unknown == []
    assert plain.parts["text"].head_config == Projection(dim=None)
    assert any("dense" in each or "vocab_transform" in each for each in plain.unused)
    source = as_lexical(plain)
    assert source.unused == []
    part = source.parts["text"]
    assert part.lexical is not None
    assert part.lexical.tied == (name != "BERT, a table of its own")
    theirs = expected(name)
    assert (theirs["out"] > 0.1).mean() > 0.2
    np.testing.assert_allclose(encoded(*model_of(source), theirs), theirs["out"], **TOLERANCE)


def test_gradients_of_bert() -> None:
    source, theirs = lexical("BERT"), expected("BERT")
    part = source.parts["text"]
    gradients = {k.removeprefix("grad."): x for k, x in theirs.items() if k.startswith("grad.")}
    own = {name.removeprefix("bert."): x for name, x in gradients.items()}
    wanted = {f"text/{path}": x for _, path, x in part.kind.table.to_ours(own)}
    assert part.kind.masked is not None
    head = part.kind.masked.table.to_ours(gradients)
    wanted |= {f"text_head/{path}": x for _, path, x in head}
    model, params = model_of(source)

    @jax.jit
    def differentiate(params: Any) -> Any:
        return jax.grad(lambda p: jnp.sum(encoded(model, p, theirs) * theirs["weights"]))(params)

    names = names_of(differentiate(params))
    assert set(names) == set(wanted)
    for path, value in wanted.items():
        scale = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(names[path] / scale, value / scale, atol=1e-5, err_msg=path)


@pytest.mark.parametrize("name", ["BERT", "RoBERTa", "DistilBERT", "MPNet"])
def test_tables_read_both_ways(name: str) -> None:
    part = lexical(name).parts["text"]
    assert part.kind.masked is not None
    back = part.kind.masked.table.to_theirs(part.head)
    state = load_file(DATA / MODELS[name] / "model.safetensors")
    assert len(back) == 5
    for key, value in back.items():
        np.testing.assert_array_equal(value, state[key], err_msg=key)


def bert_folder(root: Path, name: str = "masked_bert") -> Path:
    """A stored model of BERT's kind, with a tokenizer."""
    shutil.copytree(DATA / name, root, dirs_exist_ok=True)
    (root / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    return root


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
    bert_folder(root)
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
    theirs = expected("BERT")
    np.testing.assert_allclose(encoded(*model_of(sources[1]), theirs), theirs["out"], **TOLERANCE)


def test_splade_with_two_logarithms(tmp_path: Path) -> None:
    source = read(str(splade_folder(tmp_path, OLD, activation_function="log1p_relu")))
    theirs = expected("BERT")
    found = encoded(*model_of(source), theirs)
    np.testing.assert_allclose(found, np.log1p(theirs["out"]), **TOLERANCE)


def test_import_reads_max_active_dims_as_gate(tmp_path: Path) -> None:
    path = splade_folder(tmp_path, NEW) / "config_sentence_transformers.json"
    write(path, {"model_type": "SparseEncoder", "max_active_dims": 7})
    head: Any = read(str(tmp_path)).parts["text"].lexical
    assert (head.top_k, head.keep_input_terms) == (7, False)


@pytest.mark.parametrize(
    ("pooling", "words"),
    [
        ({"pooling_strategy": "sum"}, ["pooling_strategy is 'sum'", "imported: max"]),
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


def test_imported_written_and_loaded(tmp_path: Path, said: list[str]) -> None:
    model = import_model(str(bert_folder(tmp_path / "bert")), head="lexical")
    assert model.config.topology == "inner"
    assert any("lexical, log1p_relu" in line for line in said)
    assert not any("left out" in line for line in said)
    texts, theirs = ["w7 w9", "w30"], expected("BERT")
    assert theirs["short_ids"].tolist() == [[2, 7, 9, 3], [2, 30, 3, 0]]
    np.testing.assert_allclose(
        model.encode_texts(texts).toarray(), theirs["short_out"], **TOLERANCE
    )
    write_model(model, tmp_path / "ours")
    again = load(tmp_path / "ours")
    ours, theirs = again.encode_texts(texts), model.encode_texts(texts)
    np.testing.assert_array_equal(ours.toarray(), theirs.toarray())
    own = read(str(tmp_path / "ours")).parts["text"]
    assert own.lexical == model.config.fields["text"].head
    assert set(own.head) == {"dense/kernel", "dense/bias", "ln/scale", "ln/bias", "bias"}


def test_without_being_asked_the_masked_language_head_is_left_out(
    tmp_path: Path, said: list[str]
) -> None:
    model = import_model(str(bert_folder(tmp_path)))
    assert model.encode_texts(["w7"]).shape == (1, 1, 32)
    (left,) = [line for line in said if "left out" in line]
    assert "cls.predictions.bias" in left
    assert "cls.predictions.transform.dense.weight" in left


def test_no_masked_language_head(tmp_path: Path) -> None:
    file = bert_folder(tmp_path, "bert") / "model.safetensors"
    weight = np.ones((32, 32), np.float32)
    pooler = {"pooler.dense.weight": weight, "pooler.dense.bias": weight[0]}
    save_file({**load_file(file), **pooler}, file)
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
    wanted = names_of(model.weights)
    shapes = {path: x.shape for path, x in wanted.items()}
    write_model(model, tmp_path / "ours")
    for path in (bert, splade_folder(tmp_path / "splade", OLD), tmp_path / "ours"):
        found = read_initial_weights(
            dataclasses.replace(c, init={"text": Init(str(path))}), shapes, {}
        )
        assert set(found.params) == set(wanted) - {"scalars/main/logit_scale"}
        for name, value in found.params.items():
            np.testing.assert_array_equal(value, wanted[name], err_msg=name)
        assert not any("anew" in note or "of no use" in note for note in found.notes)
        assert sum("head: the lexical head of" in note for note in found.notes) == 2


def test_heads_that_start_anew_or_do_not_fit(tmp_path: Path) -> None:
    c, model = started_from(bert_folder(tmp_path))
    shapes = {path: x.shape for path, x in names_of(model.weights).items()}
    anew = read_initial_weights(
        dataclasses.replace(c, init={"text": Init(str(tmp_path), head=False)}), shapes, {}
    )
    assert "text_head starts anew" in anew.notes
    assert not any(path.startswith("text_head") for path in anew.params)
    assert any("cls.predictions.bias" in note for note in anew.notes)
    other, _ = started_from(tmp_path, transform="relu", use_bias=False)
    with pytest.raises(UserError) as problem:
        read_initial_weights(other, shapes, {})
    for word in ("config.fields", "transform relu", "head.use_bias=True", "init.text.head=False"):
        assert word in str(problem.value)
