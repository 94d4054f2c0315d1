"""Reference values of "Retrieval-based Disentangled Representation Learning" (VDR).

What the arrays are and the tolerances: data/vdr/README.md. Every array of a file is compared or
goes into something that is.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from scipy import sparse

from big_retrieval.config import Schedule, TermMask, Vdr
from big_retrieval.data.text.tokenizers import load_tokenizer, wordpiece_tokenizer
from big_retrieval.losses.contrastive import contrastive_loss
from big_retrieval.losses.lexical import LexicalBatch, contrastive_mask
from big_retrieval.losses.pairwise import Execution, Negatives, PairBatch
from big_retrieval.losses.vdr import LossTerms, vdr_loss
from big_retrieval.models.lexical import LexicalHead, elu1p
from big_retrieval.similarity import Inner
from big_retrieval.sparse import gate, listing
from big_retrieval.sparse.sharded import term_axis
from big_retrieval.sparse.terms import terms_of
from big_retrieval.train.microbatch import in_slices
from big_retrieval.train.schedules import make_schedule
from tests.golden.conftest import golden_folder
from tests.golden.vdr_models import (
    PATCHES,
    TEXT,
    Case,
    ImageEncoder,
    TextEncoder,
    bag,
    close,
    columns_in,
    gated,
    words_of,
)
from tests.helpers import lexical_head
from tests.retrieval.index_cases import make_inverted

each_case = {"prefixes": "_"}


@pytest.mark.golden("vdr", "elu1p.npz")
def test_elu1p(case: Case) -> None:
    value, pull = jax.vjp(elu1p, jnp.asarray(case["x"]))
    np.testing.assert_allclose(value, case["y"], rtol=1e-5, atol=2e-7)
    np.testing.assert_allclose(pull(case["cotangent"])[0], case["grad_x"], rtol=1e-5, atol=2e-7)


@pytest.mark.golden("vdr", "topk_gate.npz", **each_case)
def test_gate(case: Case) -> None:
    width, k = case["emb"].shape[-1], int(case["k"])
    flat = jnp.asarray(case["emb"].reshape(-1, width))
    found = jax.jit(gate.sparsify, static_argnums=1)(flat, k)
    mask = jax.jit(gate.dense_mask, static_argnums=1)(found.terms, width)
    np.testing.assert_array_equal(mask, case["mask"].reshape(-1, width))
    dense = jax.jit(gate.to_dense, static_argnums=1)(found, width)
    np.testing.assert_array_equal(dense, case["sparse"].reshape(-1, width))


@pytest.mark.golden("vdr", "bow.npz", **each_case)
def test_bag_of_words(case: Case) -> None:
    width = int(case["vocab_size"] - case["shift"])
    words = jnp.asarray(np.where(case["ids"] >= case["shift"], case["ids"] - case["shift"], -1))
    np.testing.assert_array_equal(bag(words, width), case["bow"])
    close(bag(words, width, True), case["bow_l2"])


@pytest.mark.golden("vdr", "cts_mask.npz", **each_case)
def test_contrastive_mask(case: Case) -> None:
    rows, width = case["bow"].shape
    active = jnp.any(jnp.asarray(case["bow"]) != 0, axis=0)
    np.testing.assert_array_equal(contrastive_mask(active, rows)[:, 0], case["cts_mask"])
    start = contrastive_mask(jnp.zeros(width, bool), rows)
    np.testing.assert_array_equal(start[:, 0], case["init"])


def run_head(case: Case, head: LexicalHead) -> None:
    """The head's output and the gradients of all of its inputs."""

    def apply(hidden: Any, table: Any, scale: Any, bias: Any) -> Any:
        variables = {"params": {"ln": {"scale": scale, "bias": bias}}}
        return head.apply(variables, hidden, None, table)

    @jax.jit
    def run(inputs: Any, cotangent: Any) -> Any:
        out, pull = jax.vjp(apply, *inputs)
        return out, pull(cotangent)

    names = ("hidden", "word_embeddings", "ln_weight", "ln_bias")
    out, gradients = run([case[name] for name in names], case["cotangent"])
    close(out, case["out"])
    for name, gradient in zip(names, gradients, strict=True):
        close(gradient, case[f"grad_{name}"], name=name)


@pytest.mark.golden("vdr", "dst_head_text.npz", **each_case)
def test_head(case: Case) -> None:
    top_k = int(case["pooling_topk"]) if str(case["pooling"]) == "mean" else None
    columns = range(int(case["shift"]), len(case["word_embeddings"]))
    pooling: Any = str(case["pooling"])
    how: Any = {"pooling": pooling, "pooling_top_k": top_k, "normalise": bool(case["norm"])}
    run_head(case, lexical_head(columns, tied=True, **how))


@pytest.mark.golden("vdr", "dst_head_text_crossmodal.npz")
def test_crossmodal_head(case: Case) -> None:
    columns = tuple(case["valid_token_ids"].tolist())
    run_head(case, lexical_head(columns, tied=True, normalise=True))


def tops_in(case: Case) -> dict[str, int]:
    """Arrays named by their k, such as emb_topk8 and emb_top20."""
    found = {name: re.fullmatch(r"emb_topk?(\d+)", name) for name in case}
    tops = {name: int(match[1]) for name, match in found.items() if match}
    assert tops
    return tops


def check_text(case: Case, encoder: TextEncoder, chosen: Any, dense: str) -> None:
    """Positions, V, and E for every gate of the file."""
    ids, mask = case["input_ids"], case["attention_mask"].astype(bool)
    assert not case["token_type_ids"].any()
    close(encoder.hidden(encoder.params, ids, mask), case["last_hidden_state"], rtol=1e-4)
    embeddings = encoder(encoder.params, ids, mask)
    close(embeddings, case[dense], rtol=1e-4)
    words, width = columns_in(case, ids, chosen), len(chosen)
    gates = {"emb_default": int(case["topk"]), "emb_all": width, **tops_in(case)}
    for name, k in gates.items():
        close(gated(embeddings, k, width, words), case[name], rtol=1e-4, name=name)
    for name, k in tops_in(case).items():
        if f"{name}_nolex" in case:
            close(gated(embeddings, k, width), case[f"{name}_nolex"], rtol=1e-4)
    close(bag(words, width), case["emb_bow"])


def check_tokens(case: Case, length: int) -> None:
    """Our tokenizer gives the file's ids."""
    tokenizer = wordpiece_tokenizer(case["vocab"].tolist())
    ids, mask = tokenizer.encode(case["texts"].tolist(), length)
    np.testing.assert_array_equal(ids, case["input_ids"])
    np.testing.assert_array_equal(mask, case["attention_mask"])


@pytest.mark.golden("vdr", "text_encoder_t2t.npz")
def test_text_encoder(case: Case) -> None:
    chosen = range(int(case["shift"]), len(case["vocab"]))
    assert float(case["bert_layer_norm_eps"]) == 1e-12
    assert float(case["ln_head_eps"]) == lexical_head(chosen).spec.epsilon
    check_tokens(case, case["input_ids"].shape[1])
    encoder = TextEncoder(case, "w/", chosen)
    check_text(case, encoder, chosen, "v_dense")
    for row, expected in enumerate(case["emb_batch1"]):  # without the padding of the longer texts
        mask = case["attention_mask"][row : row + 1].astype(bool)
        ids = case["input_ids"][row : row + 1, : mask.sum()]
        embeddings = encoder(encoder.params, ids, mask[:, : mask.sum()])
        words = columns_in(case, ids, chosen)
        found = gated(embeddings, int(case["topk"]), len(chosen), words)
        close(found[0], expected, rtol=1e-4)
    # Ours leaves padding out of the pooling unless told otherwise: the same without any care.
    masked = encoder.head.clone(spec=dataclasses.replace(encoder.head.spec, pool_padding=False))
    hidden = encoder.hidden(encoder.params, case["input_ids"], case["attention_mask"].astype(bool))
    embeddings: Any = jax.jit(masked.apply)(
        {"params": encoder.params["head"]}, hidden, jnp.asarray(case["attention_mask"]),
        encoder.params["text"]["token_embedding"],
    )  # fmt: skip
    words = columns_in(case, case["input_ids"], chosen)
    close(gated(embeddings, int(case["topk"]), len(chosen), words), case["emb_batch1"], rtol=1e-4)


@pytest.mark.golden("vdr", "text_encoder_crossmodal.npz")
def test_crossmodal_text_encoder(case: Case) -> None:
    chosen = case["valid_token_ids"].tolist()
    check_tokens(case, case["input_ids"].shape[1])
    check_text(case, TextEncoder(case, "w/", tuple(chosen), normalise=True), chosen, "v_dense_l2")


@pytest.mark.golden("vdr", "image_encoder.npz")
def test_image_encoder(case: Case) -> None:
    encoder = ImageEncoder(case)
    width, top_k = encoder.width, int(case["topk"])
    assert width == len(case["valid_token_ids"])
    assert case["pixels_nchw"].shape[-1] == int(case["resolution"])
    params, pixels = encoder.params, jnp.asarray(case["pixels_nchw"])

    @jax.jit
    def run(params: Any, pixels: Any) -> Any:
        def weighed(params: Any, pixels: Any) -> Any:
            embeddings = encoder(params, pixels)
            found = gate.to_dense(gate.sparsify(embeddings, top_k), width)
            return jnp.sum(found * case["cotangent"]), (embeddings, found)

        grads, found = jax.grad(weighed, (0, 1), has_aux=True)(params, pixels)
        return encoder.patches(params, pixels), *found, *grads

    patches, embeddings, found, of_params, of_pixels = run(params, pixels)
    close(patches, case["patch_states"], rtol=1e-4)
    close(embeddings, case["v_dense_l2"], rtol=1e-4)
    close(found, case[f"emb_top{top_k}"], rtol=1e-4)
    for name, k in tops_in(case).items():
        close(gated(embeddings, k, width), case[name], rtol=1e-4, name=name)
    close(of_pixels, case["grad_pixels"], rtol=1e-4, share=2e-5)
    close(of_params["head"]["kernel"], case["grad_proj"], rtol=1e-4)
    kernel = np.asarray(of_params["image"]["patch_embedding"]["kernel"])
    theirs = PATCHES.to_source({"image/patch_embedding/kernel": kernel})
    close(theirs["conv1.weight"], case["grad_conv1"], rtol=1e-4)


@pytest.mark.golden("vdr", "sce.npz", **each_case)
def test_sce(case: Case) -> None:
    """Eq. 5; the temperature divides."""
    n = len(case["q"])

    def loss(q: Any, p: Any, temperature: Any, directions: Any = "both") -> Any:
        rest = p[n:].reshape(n, -1, 1, p.shape[1])
        negatives = Negatives(rest) if rest.size else None
        pairs = PairBatch(q[:, None], p[:n, None], Inner(), 1 / temperature, negatives=negatives)
        return contrastive_loss(pairs, directions=directions)

    def both(*inputs: Any) -> Any:
        value, _ = loss(*inputs)
        return value, (value, *loss(*inputs, directions="query"))

    inputs = [jnp.asarray(case[name]) for name in ("q", "p", "temperature")]
    grads, (value, alone, metrics) = jax.jit(jax.grad(both, (0, 1, 2), has_aux=True))(*inputs)
    close(value, case["loss"])
    close(alone, case["loss_q2p_only"])
    assert round(float(metrics["accuracy"]) * n) == case["num_correct"]
    for name, grad in zip(("q", "p", "temperature"), grads, strict=True):
        rtol = 1e-4 if name == "temperature" else 1e-5
        close(grad, case[f"grad_{name}"], rtol=rtol, name=name)


_CTS = {"apply": "bag", "source": "bag"}
MODES = {
    "paper": {},
    "paper_asym": {"directions": "query"},
    "semi": {"symmetric": True},
    "semi_cts": {"symmetric": True, "mask": TermMask(**_CTS)},  # type: ignore
    "semi_cts_w05_norm": {
        "symmetric": True,
        "mask": TermMask(**_CTS, weight=0.5, normalise=True),  # type: ignore
    },
}
PARAMETRIC = ("gated", "gated_document")
TERMS = ("gated", "gated_document", "bag", "bag_document")


def inputs_of(case: Case) -> list[jax.Array]:
    """Queries, passages and the words of both.

    All are arguments of the jitted functions: nothing of a case is a constant of the program.
    """
    embeddings = [jnp.asarray(case[f"{side}_emb"]) for side in "qp"]
    return [*embeddings, *(words_of(case[f"{side}_bow"]) for side in "qp")]


def sides_of(
    case: Case, q: Any, p: Any, q_words: Any, words: Any
) -> tuple[LexicalBatch, LexicalBatch, LexicalBatch | None]:
    """Queries, positives and hard negatives of a file of losses."""
    n, extra = int(case["n"]), int(case["m"]) - 1
    query, document = LexicalBatch(q[:, None], q_words), LexicalBatch(p[:n, None], words[:n])
    if not extra:
        return query, document, None
    others = p[n:].reshape(n, extra, 1, -1), words[n:].reshape(n, extra, -1)
    return query, document, LexicalBatch(*others)


def loss_of(config: Vdr, *sides: LexicalBatch | None, **common: Any) -> Any:
    """`vdr_loss` of queries, positives and hard negatives."""
    query, document, negatives = sides
    assert query is not None
    assert document is not None
    if negatives is not None:
        common["negatives"] = Negatives(negatives.embeddings)
    named = zip(("query", "document", "negatives"), sides, strict=True)
    words = {k: side.bow for k, side in named if side is not None and side.bow is not None}
    return vdr_loss(
        config, PairBatch(query.embeddings, document.embeddings, Inner(), **common), words
    )


@pytest.mark.golden("vdr", "vdr_loss_case*.npz", quick=1)
def test_loss(case: Case) -> None:
    modes = [mode for mode in MODES if f"{mode}/loss" in case]
    assert "paper" in modes
    found = losses_of(case, modes)
    for mode in modes:
        check_loss(case, mode, [each[mode] for each in found])


@pytest.mark.slow
@pytest.mark.golden("vdr", "vdr_loss_case*.npz")
@pytest.mark.parametrize("form", ["ring", "slices", "gather"])
def test_loss_in_other_forms(case: Case, form: str) -> None:
    """Rows in slices on one device; slices, blocks, rows and columns sharded over eight.

    One mode each; tests/losses/test_vdr_loss.py has more, against a dense form.
    """
    modes = [mode for mode in MODES if f"{mode}/loss" in case]
    modes = modes[:1] if form == "gather" else modes[-1:]
    n, exchange = int(case["n"]), "auto" if form == "slices" else form
    devices = np.array(jax.devices()[: 1 if form == "slices" else 8])
    groups = 2 if n % 2 == 0 and form != "slices" else 1

    def value(mode: str, q: Any, p: Any, *words: Any) -> Any:
        sides = sides_of(case, q, p, *words)
        embeddings = {str(k): side.embeddings for k, side in enumerate(sides) if side is not None}
        encoded, _ = in_slices(
            lambda one, _, rows: (jax.tree.map(lambda x: x * one, rows), {}),
            jnp.ones(()),
            None,
            embeddings,
            rows_of_a_slice(n, groups),
            has_common=False,
        )
        sides = [side and side.replace(embeddings=encoded[str(k)]) for k, side in enumerate(sides)]
        execution: Any = Execution(exchange, 2, term_axis())
        return loss_of(config_of(case, mode), *sides, execution=execution)[0]

    @jax.jit
    def run(*inputs: Any) -> Any:
        return {mode: jax.value_and_grad(value, (1, 2))(mode, *inputs) for mode in modes}

    mesh = jax.sharding.Mesh(devices.reshape(groups, 1, -1), ("data", "fsdp", "tensor"))
    with jax.set_mesh(mesh):
        found = jax.device_get(run(*inputs_of(case)))
    for mode, (loss, grads) in found.items():
        close(loss, case[f"{mode}/loss"])
        for side, grad in zip("qp", grads, strict=True):
            close(grad, case[f"{mode}/grad_{side}"], rtol=1e-4, share=5e-6, name=side)


def rows_of_a_slice(n: int, groups: int) -> int:
    """Rows of the largest slice that is not the whole batch of n, if a group has more than one.

    Slices divide the batch, and the groups of devices divide a slice.
    """
    rows = n // groups
    return groups * max((k for k in range(1, rows) if rows % k == 0), default=rows)


def config_of(case: Case, mode: str) -> Vdr:
    """Means of directions and terms, as the reference takes them."""
    normed = bool(np.any((case["q_bow"] > 0) & (case["q_bow"] < 1)))
    how = {"top_k": int(case["topk"]), "bag_norm": normed, **MODES[mode]}
    return Vdr(**how, reduction="mean")  # type: ignore


def loss_terms_of(mode: str) -> Sequence[str]:
    """Names of a mode's terms."""
    return TERMS if mode.startswith("semi") else ("gated", "bag")


def losses_of(case: Case, modes: Sequence[str]) -> list[Any]:
    """By mode: the loss and its terms, gradients, metrics and operands.

    The gradients are those of the loss in the first entry of the list, of term k in entry k. One
    program computes all modes (they have much in common, which is compiled once), and all entries.
    """

    @jax.jit
    def run(cotangent: Any, q: Any, p: Any, *words: Any) -> Any:
        def loss(mode: str, q: Any, p: Any) -> Any:
            sides = sides_of(case, q, p, *words)
            execution = Execution(block=3)
            value, metrics = loss_of(config_of(case, mode), *sides, execution=execution)
            parts = [value, *(metrics[f"loss_{name}"] for name in loss_terms_of(mode))]
            return jnp.stack(parts), metrics

        out = {}
        for mode in modes:
            values, pull, metrics = jax.vjp(functools.partial(loss, mode), q, p, has_aux=True)
            terms = LossTerms(config_of(case, mode), *sides_of(case, q, p, *words))
            operands = matrices(terms.operands(), q.shape[1])
            out[mode] = values, pull(cotangent[: len(values)]), metrics, operands
        return out

    rows = np.eye(1 + max(len(loss_terms_of(mode)) for mode in modes), dtype=np.float32)
    return [jax.device_get(run(row, *inputs_of(case))) for row in rows]


def check_loss(case: Case, mode: str, found: Sequence[Any]) -> None:
    """The loss and each term by itself, with all gradients."""
    names = loss_terms_of(mode)
    values, _, metrics, operands = found[0]
    grads = [each[1] for each in found]
    close(values[0], case[f"{mode}/loss"])
    for side, grad in zip("qp", grads[0], strict=True):
        close(grad, case[f"{mode}/grad_{side}"], rtol=1e-4, share=5e-6, name=side)
    for number, name in enumerate(names, 1):
        close(len(names) * values[number], case[f"{mode}/term{number}_loss"])
        if f"{mode}/term{number}_grad_q" in case:
            for side, grad in zip("qp", grads[number], strict=True):
                theirs = case[f"{mode}/term{number}_grad_{side}"] / len(names)
                close(grad, theirs, rtol=1e-4, share=5e-6, name=f"{name} {side}")
    check_counts(case, mode, metrics)
    check_operands(case, mode, operands, names)


def matrices(operands: Mapping[str, Any], width: int) -> dict[str, tuple[Any, Any]]:
    """Both sides of each term as whole matrices, the passages with the hard negatives."""
    out = {}
    for name, (query, document, others) in operands.items():
        query = gate.to_dense(query, width) if isinstance(query, gate.SparseRows) else query
        sides = [document] if others is None else [document, others]
        documents = jnp.concatenate([x.reshape(-1, width) for x in sides])
        out[name] = query.reshape(-1, width), documents
    return out


def check_counts(case: Case, mode: str, metrics: Mapping[str, Any]) -> None:
    """Own passages that come first: of one direction alone, as the reference counts them."""
    if mode != "paper_asym":
        return
    n = int(case["n"])
    for name, number, theirs in (
        ("accuracy", 1, "parametric"),
        ("accuracy_bag", 2, "semiparametric"),
    ):
        found = round(float(metrics[name]) * n)
        assert (
            found
            == case[f"{mode}/term{number}_num_correct"]
            == case[f"{mode}/num_correct_{theirs}"]
        )


def check_operands(
    case: Case, mode: str, operands: Mapping[str, tuple[Any, Any]], names: Sequence[str]
) -> None:
    """The matrices whose product is each term's scores; and the counts that follow from them."""
    n, counts = int(case["n"]), []
    for number, name in enumerate(names, 1):
        query, document = operands[name]
        if f"{mode}/term{number}_q_operand" in case:
            close(query, case[f"{mode}/term{number}_q_operand"], name=name)
            close(document, case[f"{mode}/term{number}_p_operand"], name=name)
        counts.append(np.sum(np.argmax(query @ document.T, axis=1) == np.arange(n)))
        assert counts[-1] == case[f"{mode}/term{number}_num_correct"]
    half = len(names) // 2
    assert np.mean(counts[:half]) == case[f"{mode}/num_correct_parametric"]
    assert np.mean(counts[half:]) == case[f"{mode}/num_correct_semiparametric"]


@pytest.mark.golden("vdr", "train_forward_t2t.npz")
def test_training(case: Case) -> None:
    """From ids to the loss and the gradients of parameters."""
    chosen = range(int(case["shift"]), len(case["vocab"]))
    encoders = {side: TextEncoder(case, f"{side}/w/", chosen) for side in "qp"}
    q_ids = case["q_ids_padded"][:, : int(case["q_max_len"])]
    p_ids = case["p_ids_padded"][:, : int(case["p_max_len"])]
    check_training_tokens(case)
    n = len(q_ids)
    q_words, p_words = (columns_in(case, ids, chosen) for ids in (q_ids, p_ids))
    for words, bow in ((q_words, case["q_bow"]), (p_words, case["p_bow"])):
        np.testing.assert_array_equal(bag(words, len(chosen)), bow)
    config = Vdr(top_k=int(case["topk"]), reduction="mean")

    def loss(params: Any) -> Any:
        q = encoders["q"](params["q"], q_ids, q_ids != 0)
        p = encoders["p"](params["p"], p_ids, p_ids != 0)
        others = [x[n:].reshape(n, len(x) // n - 1, *x.shape[1:]) for x in (p[:, None], p_words)]
        negatives = LexicalBatch(*others) if others[0].size else None
        sides = LexicalBatch(q[:, None], q_words), LexicalBatch(p[:n, None], p_words[:n]), negatives
        value, metrics = loss_of(config, *sides)
        return value, (metrics, q, p)

    params = {side: encoder.params for side, encoder in encoders.items()}
    (value, (metrics, q, p)), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    close(value, case["loss"], rtol=1e-4)
    close(2 * metrics["loss_gated"], case["term1_loss"], rtol=1e-4)
    close(2 * metrics["loss_bag"], case["term2_loss"], rtol=1e-4)
    close(q, case["q_v_dense"], rtol=1e-4)
    close(p, case["p_v_dense"], rtol=1e-4)
    for name, query in (
        ("parametric", gated(q, config.top_k, len(chosen), q_words)),
        ("semiparametric", case["q_bow"]),
    ):
        assert np.sum(np.argmax(query @ p.T, axis=1) == np.arange(n)) == case[f"num_correct_{name}"]
    for side in "qp":
        flat = traverse_util.flatten_dict(grads[side], sep="/")
        theirs = TEXT.to_source({path: np.asarray(x) for path, x in flat.items()})
        expected = {
            k.removeprefix(f"{side}/grad/"): x
            for k, x in case.items()
            if k.startswith(f"{side}/grad/")
        }
        assert expected
        for name, grad in expected.items():
            # The row of [PAD] among them: padding moves no word's vector, here as there.
            close(theirs[name], grad, rtol=1e-4, share=2e-5, name=name)


def check_training_tokens(case: Case) -> None:
    """Our tokenizer gives the file's ids; long texts are cut later, and lose their [SEP] there."""
    tokenizer = wordpiece_tokenizer(case["vocab"].tolist())
    length = case["q_ids_padded"].shape[1]
    np.testing.assert_array_equal(
        tokenizer.encode(case["queries"].tolist(), length)[0], case["q_ids_padded"]
    )
    titles = [*case["positive_titles"].tolist(), *case["negative_titles"].tolist()]
    texts = [*case["positive_texts"].tolist(), *case["negative_texts"].tolist()]
    joined = [f"{title} [SEP] {text}" for title, text in zip(titles, texts, strict=True)]
    np.testing.assert_array_equal(tokenizer.encode(joined, length)[0], case["p_ids_padded"])


@pytest.mark.golden("vdr", "lr_schedules.npz")
@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_schedules(case: Case, kind: Any) -> None:
    config = Schedule(kind, int(case["warmup_steps"]), floor=1e-7 if kind == "linear" else 0.0)
    ours = jax.vmap(make_schedule(config, int(case["total_steps"])))(jnp.arange(len(case[kind])))
    np.testing.assert_allclose(ours, case[kind], rtol=1e-5)


NOT_HERE = "the authors' list and BERT's vocabulary are no part of the project: --golden-dir"


@pytest.mark.golden("vdr", "crossmodal_vocab_columns.npz", absent=NOT_HERE)
def test_columns(case: Case, request: pytest.FixtureRequest) -> None:
    """The rule on vocabularies of our own: tests/test_columns.py."""
    path = golden_folder(request.config) / "vdr" / "bert-base-uncased-vocab.txt"
    if not path.exists():
        pytest.skip(NOT_HERE)
    tokenizer = load_tokenizer("wordpiece", str(path))
    assert tokenizer.vocab_size == case["bert_vocab_size"]
    assert terms_of("ascii", tokenizer).ids == tuple(case["valid_token_ids"].tolist())
    whole = range(int(case["text_to_text_shift"]), tokenizer.vocab_size)
    assert terms_of("words", tokenizer).ids == whole
    assert len(terms_of("1000-", tokenizer)) == 29_522


def words_in(case: Case) -> list[str]:
    """What the columns of a cross-modal model are called."""
    return [str(case["vocab"][i]) for i in case["valid_token_ids"]]


def check_words(found: Sequence[tuple[str, float]], case: Case, name: str) -> None:
    """A listing against the file's, in the same order."""
    assert [word for word, _ in found] == case[f"{name}_tokens"].tolist()
    close([value for _, value in found], case[f"{name}_values"], rtol=1e-4)


@pytest.mark.golden("vdr", "text_encoder_crossmodal.npz")
def test_words_of_a_text(case: Case) -> None:
    listed = len(case["dst_text0_tokens"])
    check_words(
        listing.strongest(case["emb_default"][0], words_in(case), listed), case, "dst_text0"
    )


@pytest.mark.golden("vdr", "image_encoder.npz")
def test_words_of_an_image_and_shared_words(case: Case, request: pytest.FixtureRequest) -> None:
    path = golden_folder(request.config) / "vdr" / "text_encoder_crossmodal.npz"
    with np.load(path, allow_pickle=False) as arrays:
        texts = dict(arrays)
    chosen, top_k = texts["valid_token_ids"].tolist(), int(case["explain_topk"])
    np.testing.assert_array_equal(case["valid_token_ids"], texts["valid_token_ids"])
    words, width = words_in(texts), len(chosen)
    strongest, listed = case[f"emb_top{int(case['topk'])}"][0], len(case["dst_image0_tokens"])
    check_words(listing.strongest(strongest, words, listed), case, "dst_image0")

    # The head over the patches of image 0, gated; all patches are a group, too.
    head = lexical_head(range(width), layer_norm=False, normalise=True)
    params = {"params": {"kernel": jnp.asarray(case["w/proj"])}}
    patches = jnp.asarray(case["patch_states"][:1])
    dense: Any = jax.jit(head.apply)(params, patches, jnp.ones(patches.shape[:2], bool))
    image = gated(dense, top_k, width)
    close(image, case["explain_image0_emb"], rtol=1e-4)

    assert str(case["explain_text0"]) == str(texts["texts"][0])
    encoder = TextEncoder(texts, "w/", tuple(chosen), normalise=True)
    ids = texts["input_ids"][:1]
    embeddings = encoder(encoder.params, ids, texts["attention_mask"][:1].astype(bool))
    text = gated(embeddings, top_k, width, columns_in(texts, ids, chosen))
    close(text, case["explain_text0_emb"], rtol=1e-4)

    found = listing.shared(np.asarray(text)[0], np.asarray(image)[0], words, top_k)
    check_words([(word, value) for word, value, _ in found.words], case, "explain_text0_image0")
    close(found.score, case["explain_text0_emb"][0] @ case["explain_image0_emb"][0], rtol=1e-4)


@pytest.mark.golden("vdr", "binary_token_index.npz")
def test_index(case: Case, tmp_path: Path) -> None:
    """Queries of the model against bags of words; and the other way round from the same scores."""
    bags = sparse.csr_array(case["doc_bow_full"][:, int(case["shift"]) :].astype(np.float32))
    queries, k = sparse.csr_array(case["q_emb"]), int(case["k"])
    index = make_inverted(tmp_path / "binary", bags, batch=7, values="binary")
    found, scores = index.search(queries, k)
    np.testing.assert_array_equal(found, case["topk_ids"])
    close(scores, case["topk_scores"])
    close((queries @ bags.T).toarray(), case["all_scores"])
    mirror = make_inverted(tmp_path / "mirror", queries, batch=3, values="float32")
    for number, row in enumerate(case["all_scores"].T):  # documents ask, by their words alone
        found, scores = mirror.search(bags[number : number + 1], len(row))
        close(scores[0][found[0] >= 0], row[found[0][found[0] >= 0]])
