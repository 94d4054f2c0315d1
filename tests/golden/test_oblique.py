"""Reference values of "Design of the Topology for Contrastive Visual-Textual Alignment".

What the arrays are and the tolerances: data/oblique/README.md. Every array of a file is compared or
goes into something that is compared.
"""

import json
from collections.abc import Mapping
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.config import Bert, ImageField, Projection, TextField, ViT
from big_retrieval.config.topologies import topology_part
from big_retrieval.inference.gradcam import program
from big_retrieval.interop.kinds import MTOB_TEXT, OPEN_CLIP_IMAGE
from big_retrieval.interop.names import LAYOUTS
from big_retrieval.losses.contrastive import contrastive_loss
from big_retrieval.losses.pairwise import PairBatch
from big_retrieval.models.towers import RetrievalModel
from tests.helpers import built

Case = Mapping[str, np.ndarray]

OBLIQUE = topology_part("oblique")
PROJECTIONS = ("image_head", "text_head")
TOPOLOGIES = {
    "sphere_ip": "sphere",
    "euclid_l2": "euclidean",
    "oblique_ip": "oblique",
    "oblique_geo": "geodesic",
}
both_precisions = pytest.mark.parametrize(
    "precision", ["float32", pytest.param("float64", marks=pytest.mark.slow)]
)


def to_ours(case: Case, prefix: str) -> dict[str, np.ndarray]:
    """All arrays of a prefix by our paths, in our layout, as an import of the model reads them."""
    arrays = {k.removeprefix(prefix): x for k, x in case.items() if k.startswith(prefix)}
    out = {"scale": arrays["logit_scale"]} if "logit_scale" in arrays else {}
    known = {"logit_scale"} & set(arrays)
    for kind in (OPEN_CLIP_IMAGE, MTOB_TEXT):
        assert kind.head is not None
        for name, path, array in kind.table.to_jax(arrays):
            out[f"{kind.side}/{path}"] = array
            known.add(name)
        if kind.head.source_name in arrays:
            (out[f"{kind.side}_head/kernel"],) = LAYOUTS[kind.head.layout].to_jax(
                arrays[kind.head.source_name]
            )
            known.add(kind.head.source_name)
    assert known == set(arrays)
    return out


def compare(ours: Mapping[str, Any], expected: Case, precision: str, gradients: bool) -> None:
    """Same names, same values at the README's tolerances."""
    assert set(ours) == set(expected)
    assert expected, "nothing to compare"
    for name, value in expected.items():
        tolerance = {"rtol": 1e-7, "atol": 1e-9}
        if precision == "float32":
            tolerance = {"rtol": 1e-3 if gradients else 1e-4, "atol": 2e-5}
        elif value.dtype == np.float32:
            tolerance = {"rtol": 1e-5, "atol": 2e-6}
        assert np.asarray(ours[name]).dtype == precision, name
        np.testing.assert_allclose(ours[name], value, **tolerance, err_msg=name)


class Model:
    """Both towers and heads at the sizes of a model_*.npz."""

    def __init__(self, case: Case, dtype: Any) -> None:
        c = json.loads(str(case["config_json"]))
        m, flat = c["n_class_tokens"], to_ours(case, "param.")
        self.image = built(
            ViT,
            patch=c["vision_patch_size"],
            width=c["vision_width"],
            depth=c["vision_layers"],
            heads=c["vision_heads"],
            mlp=flat["image/layers_0/mlp/fc1/bias"].size,
            class_tokens=m,
            dtype=dtype,
        )
        self.text = built(
            Bert,
            vocab_size=c["vocab_size"],
            width=c["transformer_width"],
            depth=c["transformer_layers"],
            heads=c["transformer_heads"],
            mlp=flat["text/layers_0/mlp/fc1/bias"].size,
            class_tokens=m,
            dtype=dtype,
        )
        self.head = built(Projection, dim=c["output_dim"], dtype=dtype)
        self.params = flax.traverse_util.unflatten_dict(
            {tuple(path.split("/")): jnp.asarray(x, dtype) for path, x in flat.items()}
        )
        self.pixels = jnp.asarray(case["image"].transpose(0, 2, 3, 1), dtype)
        self.words = (jnp.asarray(case["input_ids"]), jnp.asarray(case["attention_mask"]))

    def loss(self, params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The README's loss, and every intermediate result under its name there."""
        image, states = self.image.apply(
            {"params": params["image"]}, self.pixels, mutable=["intermediates"]
        )
        inner = states["intermediates"]
        out = {"vision.ln_pre": inner["embedding"][0], "vision.ln_post": inner["final"][0]}
        out |= {f"vision.block{i}": x for i, x in enumerate(inner["layer_outputs"])}
        text, states = self.text.apply(
            {"params": params["text"]}, *self.words, mutable=["intermediates"]
        )
        inner = states["intermediates"]
        out |= {"text.ln_embedding": inner["embedding"][0], "text.ln_final": inner["final"][0]}
        out |= {f"text.layer{i}": x for i, x in enumerate(inner["layer_outputs"])}
        out["image_features"] = self.head.apply({"params": params["image_head"]}, image)
        out["text_features"] = self.head.apply({"params": params["text_head"]}, text)
        a, b = OBLIQUE.project(out["image_features"]), OBLIQUE.project(out["text_features"])
        out["logits_per_image"] = OBLIQUE.score(a, b)
        rows, scale = min(len(a), len(b)), jnp.exp(params["scale"])
        out["loss"], _ = contrastive_loss(PairBatch(b[:rows], a[:rows], OBLIQUE, scale))
        return out["loss"], out


@both_precisions
@pytest.mark.golden("oblique", "model_*.npz")
def test_model(case: Case, precision: str) -> None:
    """All intermediate results, features, logits, the loss and every gradient."""
    with jax.enable_x64(precision == "float64"):
        model = Model(case, jnp.dtype(precision))
        grads, out = jax.jit(jax.grad(model.loss, has_aux=True))(model.params)
    expected = {k.removeprefix("out."): x for k, x in case.items() if k.startswith("out.")}
    compare(out, expected, precision, gradients=False)
    grads = flax.traverse_util.flatten_dict(grads, sep="/")
    compare(grads, to_ours(case, "grad."), precision, gradients=True)
    if precision == "float32":
        expected = {k.removeprefix("out32."): x for k, x in case.items() if k.startswith("out32.")}
        compare({name: out[name] for name in expected}, expected, precision, gradients=False)


class NormalisedImage(ImageField):
    """An image whose pixels are what the tower reads."""

    def inputs(self, arrays: Mapping[str, Any], dtype: Any) -> tuple[Any, ...]:
        """As they are."""
        return (arrays["pixels"].astype(dtype),)


@both_precisions
@pytest.mark.golden("oblique", "gradcam_*.npz", quick=1)
def test_gradcam(case: Case, precision: str, request: pytest.FixtureRequest) -> None:
    """Scores, signed relevances and maps of image and text, whole and by pairs of class tokens."""
    path = request.node.callspec.params["case"].path
    with np.load(path.with_name(path.name.replace("gradcam", "model"))) as arrays:
        of_model = dict(arrays)
    with jax.enable_x64(precision == "float64"):
        parts = Model(of_model, jnp.dtype(precision))
        head = Projection(dim=parts.head.spec.dim)
        model = RetrievalModel(
            towers={"image": parts.image.spec, "text": parts.text.spec},
            fields={
                "image": NormalisedImage(size=parts.pixels.shape[1], head=head),
                "text": TextField(length=parts.words[0].shape[1], head=head),
            },
            topology="oblique",
            vocab_size=0,
            dtype=jnp.dtype(precision),
        )
        rows = min(len(parts.pixels), len(parts.words[0]))
        text = dict(zip(("ids", "mask"), (x[:rows] for x in parts.words), strict=True))
        arrays = {"image": {"pixels": parts.pixels[:rows]}, "text": text}
        params = {name: parts.params[name] for name in ("image", "text", *PROJECTIONS)}
        signed = program(model, "text", "image")({"params": params}, arrays)
        maps = signed.positive()
    found = {"full_score": signed.scores.whole, "pair_scores": signed.scores.pairs}
    for kind, each in (("signed", signed), ("cam", maps)):
        for end, of in (("full", 0), ("pair", 1)):
            found[f"image_{kind}_{end}"] = each.image[of]
            found[f"text_{kind}_{end}"] = each.text[of][..., 1:]
    assert not np.any(signed.text.pairs[..., 0])
    compare(found, case, precision, gradients=True)


@pytest.mark.golden("oblique", "model_*.npz")
def test_weights_are_all_of_the_model(case: Case) -> None:
    """The reference's parameters are ours, name by name and shape by shape."""
    model = Model(case, jnp.float32)
    key = jax.random.key(0)
    trees = {
        "image": jax.eval_shape(model.image.init, key, model.pixels),
        "text": jax.eval_shape(model.text.init, key, *model.words),
    }
    for name, variables in trees.items():
        ours = flax.traverse_util.flatten_dict(nn.unbox(variables["params"]), sep="/")
        theirs = flax.traverse_util.flatten_dict(model.params[name], sep="/")
        assert {n: x.shape for n, x in ours.items()} == {n: x.shape for n, x in theirs.items()}
    used = {"param", "grad", "out", "out32", "config_json", "image", "input_ids", "attention_mask"}
    assert {name.split(".")[0] for name in case} == used


def cross_entropy(logits: jax.Array) -> jax.Array:
    """Mean over rows, the diagonal being right."""
    return jnp.mean(jax.nn.logsumexp(logits, axis=1) - jnp.diagonal(logits))


@both_precisions
@pytest.mark.golden("oblique", "topology.npz", prefixes=".")
def test_topology(case: Case, precision: str) -> None:
    """Scores, both directions' losses, their mean and its gradients, for the four topologies."""
    shape = (-1, int(case["m"]), int(case["n"]))
    assert {name.split(".")[0] for name in case if "." in name} == set(TOPOLOGIES)

    def loss(top: Any, image: jax.Array, text: jax.Array, t: jax.Array) -> Any:
        a, b = top.project(image.reshape(shape)), top.project(text.reshape(shape))
        value, _ = contrastive_loss(PairBatch(b, a, top, jnp.exp(t)))
        scores = top.score(a, b)
        logits = jnp.exp(t) * scores
        directions = {"loss_i2t": cross_entropy(logits), "loss_t2i": cross_entropy(logits.T)}
        return value, {"loss": value, "neg_distance": scores, **directions}

    @jax.jit  # one program: what the topologies have in common is compiled once
    def run(*inputs: jax.Array) -> Any:
        with_grads = jax.grad(loss, argnums=(1, 2, 3), has_aux=True)
        return {each: with_grads(topology_part(each), *inputs) for each in TOPOLOGIES.values()}

    names = ("image", "text", "log_temperature")
    with jax.enable_x64(precision == "float64"):
        found = run(*(jnp.asarray(case[name], precision) for name in names))
    for theirs, ours in TOPOLOGIES.items():
        grads, out = found[ours]
        prefix = f"{theirs}."
        expected = {k.removeprefix(prefix): x for k, x in case.items() if k.startswith(prefix)}
        expected_grads = {k: expected.pop(k) for k in list(expected) if k.startswith("grad_")}
        compare(out, expected, precision, gradients=False)
        named = {f"grad_{name}": grad for name, grad in zip(names, grads, strict=True)}
        compare(named, expected_grads, precision, gradients=True)


@both_precisions
@pytest.mark.golden("oblique", "zero_shot.npz", prefixes=".")
def test_zero_shot(case: Case, precision: str) -> None:
    """Scores averaged over the prompts of a class, the class they choose, how often it is right."""
    shape = (int(case["m"]), int(case["n"]))
    classes, prompts = case["prompts"].shape[:2]
    assert {name.split(".")[0] for name in case if "." in name} == set(TOPOLOGIES)

    def average(top: Any, image: jax.Array, text: jax.Array) -> jax.Array:
        scores = top.score(top.project(image), top.project(text))  # [B, C*P]
        return jnp.mean(scores.reshape(-1, classes, prompts), axis=-1)  # [B, C]

    @jax.jit
    def run(*inputs: jax.Array) -> dict[str, jax.Array]:
        return {each: average(topology_part(each), *inputs) for each in TOPOLOGIES.values()}

    image = case["image"].reshape(-1, *shape).astype(precision)
    text = case["prompts"].reshape(classes * prompts, *shape).astype(precision)
    with jax.enable_x64(precision == "float64"):
        found = run(image, text)
    for theirs, ours in TOPOLOGIES.items():
        scores = found[ours]
        compare({"scores": scores}, {"scores": case[f"{theirs}.scores"]}, precision, False)
        if precision == "float64":  # in float32 a near tie could fall to the other side
            chosen = np.argmax(scores, axis=1)
            np.testing.assert_array_equal(chosen, case[f"{theirs}.pred"])
            right = np.mean(chosen == case["label"])
            np.testing.assert_allclose(right, case[f"{theirs}.acc"], rtol=1e-12)


@pytest.mark.golden("oblique", "tokenizer*.npz")
def test_tokenizer(case: Case) -> None:
    """WordPiece ids and masks."""
    from big_retrieval.data.text.tokenizers import wordpiece_tokenizer

    tokenizer = wordpiece_tokenizer([str(word) for word in case["vocab"]])
    strings = [str(text) for text in case["strings"]]
    ids, mask = tokenizer.encode(strings, int(case["max_len"]))
    np.testing.assert_array_equal(ids, case["input_ids"])
    np.testing.assert_array_equal(mask, case["attention_mask"].astype(bool))
