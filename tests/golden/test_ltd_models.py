"""LTD's families of models: reference values of their encoders and heads, gradients included."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from big_retrieval import config as configs
from big_retrieval.models.regions import GraphLayer
from big_retrieval.models.towers import RetrievalModel

Case = Mapping[str, np.ndarray]
Tree = dict[str, Any]
TOLERANCE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}  # of float64


@pytest.fixture(autouse=True)
def _float64() -> Any:
    with jax.enable_x64(True):
        yield


def linear(case: Case, name: str) -> Tree:
    """The parameters of a layer of torch's, linear or a convolution of one pixel, in our layout."""
    weight = np.float64(case[f"{name}.weight"])
    bias = {"bias": np.float64(case[f"{name}.bias"])} if f"{name}.bias" in case else {}
    return {"kernel": weight.reshape(weight.shape[:2]).T, **bias}


def norm(case: Case, name: str) -> Tree:
    """Scale and shift of a norm."""
    return {"scale": np.float64(case[f"{name}.weight"]), "bias": np.float64(case[f"{name}.bias"])}


def averages(case: Case, name: str) -> Tree:
    """Running averages of a batch norm."""
    parts = {"mean": "running_mean", "var": "running_var"}
    return {ours: np.float64(case[f"{name}.{theirs}"]) for ours, theirs in parts.items()}


def gru(case: Case, name: str, direction: str = "") -> Tree:
    """One direction of a GRU."""
    ours = {"ih": "input", "hh": "hidden"}
    found = {}
    for theirs, own in ours.items():
        weight = case[f"{name}.weight_{theirs}_l0{direction}"]
        found[f"{own}_kernel"] = np.float64(weight).T
        found[f"{own}_bias"] = np.float64(case[f"{name}.bias_{theirs}_l0{direction}"])
    return found


def layer(case: Case, name: str) -> Tree:
    """A transformer layer; torch has query, key and value in one matrix."""
    weight, bias = (case[f"{name}.self_attn.in_proj_{key}"] for key in ("weight", "bias"))
    parts = zip(np.split(np.float64(weight), 3), np.split(np.float64(bias), 3), strict=True)
    names = ("query", "key", "value")
    attention = {n: {"kernel": w.T, "bias": b} for n, (w, b) in zip(names, parts, strict=True)}
    return {
        "attention": {**attention, "out": linear(case, f"{name}.self_attn.out_proj")},
        "mlp": {"fc1": linear(case, f"{name}.linear1"), "fc2": linear(case, f"{name}.linear2")},
        "ln_1": norm(case, f"{name}.norm1"),
        "ln_2": norm(case, f"{name}.norm2"),
    }


def layers(case: Case, name: str) -> Tree:
    """All layers of a transformer, as many as there are."""
    count = len({key for key in case if key.startswith(name) and key.endswith("linear1.weight")})
    assert count
    return {f"layers_{i}": layer(case, f"{name}.layers.{i}") for i in range(count)}


def mlp(case: Case, prefix: str = "param.") -> Tree:
    """The projection head, with its batch norm where there is one."""
    names = {"fc1": "fc.projector.0", "fc2": "fc.projector.2"}
    found = {ours: linear(case, prefix + theirs) for ours, theirs in names.items()}
    return found | ({"bn": norm(case, f"{prefix}bn")} if f"{prefix}bn.weight" in case else {})


def head_of(case: Case) -> configs.Mlp:
    """The configuration of that head."""
    out, hidden = case["param.fc.projector.2.weight"].shape
    return configs.Mlp(hidden=hidden, dim=out, batch_norm="param.bn.weight" in case)


def head_averages(case: Case) -> Tree:
    return {"bn": averages(case, "param.bn")} if "param.bn.weight" in case else {}


def close(found: Any, wanted: Any) -> None:
    """Compares trees of arrays, name by name."""
    a, b = (traverse_util.flatten_dict({"": tree}, sep="/") for tree in (found, wanted))
    assert a.keys() == b.keys()
    for name, array in b.items():
        np.testing.assert_allclose(a[name], array, err_msg=name, **TOLERANCE)


def encoder(tower: Any, field: Any, vocab_size: int = 0) -> RetrievalModel:
    """A model of one field alone."""
    towers, fields = {field.tower: tower}, {field.tower: field}
    return RetrievalModel(towers, fields, "sphere", vocab_size, dtype=jnp.float64)


def run(model: RetrievalModel, trees: Tree, arrays: Tree, *, train: bool) -> tuple[Any, Any]:
    """(embeddings [B, D], the running averages afterwards)."""
    (name,) = model.fields
    how: Any = {"train": train, "mutable": ["batch_stats"]}
    reps, moved = model.apply(trees, {name: arrays}, **how)
    return reps.embeddings[name][:, 0], moved.get("batch_stats", {})  # type: ignore


@pytest.mark.golden("ltd", "projection_head.npz")
def test_the_projection_head(case: Case) -> None:
    weights = {key.replace("param.projector", "param.fc.projector"): x for key, x in case.items()}
    head = head_of(weights).build(None, dtype=jnp.float64)
    out = head.apply({"params": mlp(weights)}, jnp.asarray(case["input"])[:, None])
    np.testing.assert_allclose(out[:, 0], case["output"], **TOLERANCE)  # type: ignore


@pytest.mark.golden("ltd", "caption_encoder_*.npz")
def test_the_caption_encoder(case: Case) -> None:
    """Words, GRU and head: training with its gradients and averages, and evaluation."""

    def params(prefix: str) -> Tree:
        word_table = np.float64(case[f"{prefix}embed.weight"])
        directions = {"forward": "", "backward": "_reverse"}
        cells = {ours: gru(case, f"{prefix}rnn", end) for ours, end in directions.items()}
        return {"text": {"token_embedding": word_table, **cells}, "text_head": mlp(case, prefix)}

    tokens, lengths = case["tokens"], case["lengths"]
    size, words = case["param.embed.weight"].shape
    tower = configs.Gru(width=2 * case["param.rnn.weight_hh_l0"].shape[1], words=words)
    field = configs.TextField(length=tokens.shape[1], head=head_of(case))
    model, own = encoder(tower, field, size), head_averages(case)
    stats = {"text_head": own} if own else {}
    ids, mask = jnp.asarray(tokens), jnp.arange(tokens.shape[1]) < lengths[:, None]

    def value(params: Tree) -> Any:
        trees = {"params": params, "batch_stats": stats}
        out, moved = run(model, trees, {"ids": ids, "mask": mask}, train=True)
        return jnp.sum(out * case["cotangent"]), (out, moved)

    grads, (out, moved) = jax.jit(jax.grad(value, has_aux=True))(params("param."))
    np.testing.assert_allclose(out, case["output_train"], **TOLERANCE)
    close(grads, params("grad."))
    trees = {"params": params("param."), "batch_stats": stats}
    out, same = run(model, trees, {"ids": ids, "mask": mask}, train=False)
    np.testing.assert_allclose(out, case["output_eval"], **TOLERANCE)
    if "param.bn.weight" in case:
        wanted = averages({f"bn.{k}": case[f"bn_{k}_after_train"] for k in RUNNING}, "bn")
        close(moved, {"text_head": {"bn": wanted}})
    close(same, stats)


RUNNING = ("running_mean", "running_var")


@pytest.mark.golden("ltd", "image_head_*.npz")
def test_behind_the_convolutions(case: Case) -> None:
    """The average over the last map, then the head."""
    vector = case["feature_map_nchw"].mean((2, 3), dtype=np.float64)[:, None]
    config = head_of(case)
    head, stats = config.build(None, dtype=jnp.float64), head_averages(case)
    trees = {"params": mlp(case), "batch_stats": stats}

    def embeddings(train: bool) -> Any:
        out, moved = head.apply(trees, jnp.asarray(vector), train=train, mutable=["batch_stats"])
        return out[:, 0] / jnp.linalg.norm(out[:, 0], axis=-1, keepdims=True), moved

    (train, moved), (evaluation, _) = embeddings(True), embeddings(False)
    np.testing.assert_allclose(train, case["output_train"], **TOLERANCE)
    np.testing.assert_allclose(evaluation, case["output_eval"], **TOLERANCE)
    if config.batch_norm:
        wanted = averages({f"bn.{k}": case[f"bn_{k}_after_train"] for k in RUNNING}, "bn")
        close(moved["batch_stats"], {"bn": wanted})


def graph_layer(case: Case, prefix: str) -> tuple[Tree, Tree]:
    """(parameters, running averages) of one graph layer."""
    names = {"theta": "theta", "phi": "phi", "g": "g", "out": "W.0"}
    params = {ours: linear(case, f"{prefix}.{theirs}") for ours, theirs in names.items()}
    params["bn"] = norm(case, f"{prefix}.W.1")
    return params, {"bn": averages(case, f"{prefix}.W.1")}


@pytest.mark.golden("ltd", "vsrn_gcn_layer.npz")
def test_a_graph_layer(case: Case) -> None:
    params, stats = graph_layer(case, "param")
    regions = jnp.asarray(case["v_bdn"]).swapaxes(1, 2)  # [B, R, W]
    for mode in ("train", "eval"):
        module = GraphLayer(mode == "eval", dtype=jnp.float64)
        trees = {"params": params, "batch_stats": stats}
        out, _ = module.apply(trees, regions, mutable=["batch_stats"])
        np.testing.assert_allclose(
            out.swapaxes(1, 2),  # type: ignore
            case[f"output_{mode}"],
            **TOLERANCE,
        )


@pytest.mark.golden("ltd", "vsrn_image_encoder_*.npz")
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_encoder_of_a_graph_of_regions(
    case: Case, mode: str, request: pytest.FixtureRequest
) -> None:
    names = sorted({key.split(".")[1] for key in case if key.startswith("param.Rs_GCN_")})
    graph = {f"layers_{i}": graph_layer(case, f"param.{name}") for i, name in enumerate(names)}
    params = {name: part[0] for name, part in graph.items()}
    params |= {"fc": linear(case, "param.fc"), "gru": gru(case, "param.img_rnn")}
    params["bn"] = norm(case, "param.bn")
    stats = {name: part[1] for name, part in graph.items()} | {"bn": averages(case, "param.bn")}
    tower = configs.RegionGraph(
        width=len(case["param.fc.bias"]),
        depth=len(names),
        normalise_regions="f30k" not in request.node.callspec.id,
    )
    module, boxes = (
        tower.build(0, (), dtype=jnp.float64),
        jnp.zeros((*case["regions"].shape[:2], 4)),
    )

    def value(regions: Any) -> Any:
        trees: Any = {"params": params, "batch_stats": stats}
        how: Any = {"train": mode == "train", "mutable": ["batch_stats"]}
        out = module.apply(trees, regions, boxes, **how)[0][:, 0]  # type: ignore
        out = out / jnp.linalg.norm(out, axis=-1, keepdims=True)
        return jnp.sum(out * case["cotangent"]), out

    regions = jnp.asarray(case["regions"], jnp.float64)
    grad, out = jax.jit(jax.grad(value, has_aux=True))(regions)
    np.testing.assert_allclose(out, case[f"output_{mode}"], **TOLERANCE)
    if mode == "train":
        np.testing.assert_allclose(grad, case["grad_regions"], **TOLERANCE)


@pytest.mark.golden("ltd", "tern.npz")
def test_transformers_over_regions_and_words(case: Case) -> None:
    """The image tower, and the head that captions and images share."""
    of, top = "param.img_txt_enc.img_enc", "param.img_txt_enc"
    features, boxes = (np.float64(case[f"{k}_with_cls"])[:, 1:] for k in ("image_feats", "boxes"))
    inner = f"{of}.transformer_encoder"
    tower = configs.RegionTransformer(
        width=case[f"{inner}.layers.0.linear1.weight"].shape[1],
        mlp=case[f"{inner}.layers.0.linear1.weight"].shape[0],
        depth=len(layers(case, inner)),
    )
    maps = {f"fc{i + 1}": linear(case, f"{of}.pos_encoding_image.map.{2 * i}") for i in range(2)}
    params = {"params": {**maps, **layers(case, inner)}}
    regions = jax.jit(tower.build(0, (), dtype=jnp.float64).apply)(params, features, boxes)
    shared = f"{top}.transformer_encoder_1"
    head = configs.SharedTransformer(
        dim=len(case[f"{top}.img_proj.bias"]),
        depth=len(layers(case, shared)),
        mlp=case[f"{shared}.layers.0.linear1.weight"].shape[0],
    )
    projections = {f"{name}_projection": linear(case, f"{top}.{key}_proj") for name, key in SIDES}
    module = head.build(None, dtype=jnp.float64)
    words = jnp.asarray(case["caption_token_feats"], jnp.float64)
    mask = jnp.arange(words.shape[1]) < case["caption_lengths"][:, None]
    for name, x, arrays in (("image", regions, {}), ("text", words, {"mask": mask})):

        def embed(params: Tree, x: Any, arrays: Any, name: str = name) -> Any:
            bound, how = module.bind(params), {"train": False, "rows": None}
            return head.embed(bound, None, x, arrays, field=name, **how)

        params = {"params": {**projections, **layers(case, shared)}}
        out = jax.jit(embed)(params, x, arrays)
        out = out[:, 0] / jnp.linalg.norm(out[:, 0], axis=-1, keepdims=True)
        np.testing.assert_allclose(
            out, case[{"image": "z_images", "text": "z_captions"}[name]], **TOLERANCE
        )


SIDES = (("image", "img"), ("text", "cap"))
