"""Reference values of the listings of VDR: strongest words, and the words that two sides share.

What the arrays are and the tolerances: data/vdr/README.md.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval import gate
from big_retrieval.explain import listing
from big_retrieval.models.lexical import LexicalHead
from tests.golden.conftest import golden_folder
from tests.golden.test_vdr import Case, TextEncoder, close, columns_in

LISTED = 10


def words_in(case: Case) -> list[str]:
    """What the columns of a cross-modal model are called."""
    return [str(case["vocab"][i]) for i in case["valid_token_ids"]]


def check(found: Sequence[tuple[str, float]], case: Case, name: str) -> None:
    """A listing against the file's, in the same order."""
    assert [word for word, _ in found] == case[f"{name}_tokens"].tolist()
    close([value for _, value in found], case[f"{name}_values"], rtol=1e-4)


@pytest.mark.golden("vdr", "text_encoder_crossmodal.npz")
def test_words_of_a_text(case: Case) -> None:
    check(listing.strongest(case["emb_default"][0], words_in(case), LISTED), case, "dst_text0")


@pytest.mark.golden("vdr", "image_encoder.npz")
def test_words_of_an_image_and_shared_words(case: Case, request: pytest.FixtureRequest) -> None:
    path = golden_folder(request.config) / "vdr" / "text_encoder_crossmodal.npz"
    with np.load(path, allow_pickle=False) as arrays:
        texts = dict(arrays)
    chosen, top = texts["valid_token_ids"].tolist(), int(case["explain_topk"])
    np.testing.assert_array_equal(case["valid_token_ids"], texts["valid_token_ids"])
    words, width = words_in(texts), len(chosen)
    check(listing.strongest(case["emb_top20"][0], words, LISTED), case, "dst_image0")

    # The head over the patches of image 0, gated; all patches are a group, too.
    head = LexicalHead(range(width), layer_norm=False, normalise=True)
    params = {"params": {"kernel": jnp.asarray(case["w/proj"])}}
    patches = jnp.asarray(case["patch_states"][:1])
    dense = head.apply(params, patches, jnp.ones(patches.shape[:2], bool))
    image = gate.spread(gate.compact(dense, top), width)  # type: ignore
    close(image, case["explain_image0_emb"], rtol=1e-4)

    assert str(case["explain_text0"]) == str(texts["texts"][0])
    encoder = TextEncoder(texts, "w/", tuple(chosen), normalise=True)
    ids = texts["input_ids"][:1]
    points = encoder(encoder.params, ids, texts["attention_mask"][:1].astype(bool))
    text = gate.spread(gate.compact(points, top, columns_in(texts, ids, chosen)), width)
    close(text, case["explain_text0_emb"], rtol=1e-4)

    found = listing.shared(np.asarray(text)[0], np.asarray(image)[0], words, top)
    check([(word, value) for word, value, _ in found.words], case, "explain_text0_image0")
    close(found.score, case["explain_text0_emb"][0] @ case["explain_image0_emb"][0], rtol=1e-4)
