"""Activations of tower layers, which the towers sow; traced by jax."""

from typing import Any

from big_retrieval.batch import Batch
from big_retrieval.errors import UserError
from big_retrieval.models.towers import RetrievalModel

OUTPUTS = "layer_outputs"  # key of a tuple with one array per layer


def of_layers(
    model: RetrievalModel, collections: Any, batch: Batch, field: str, layer: str | int | None
) -> Any:
    """Computes the activations of a layer, the mask of valid rows, and their records.

    Args:
      collections: variables of the model.
      layer: as in `Encoder.features`.
    """
    applied: Any = model.apply(collections, batch.fields, mutable=["intermediates"])
    sown = applied[1].get("intermediates", {}).get(model.fields[field].tower, {})
    outputs = sown.get(OUTPUTS, ())
    if layer is None:
        activations = {str(index): output for index, output in enumerate(outputs)}
        activations |= {key: sown[key][0] for key in ("embedding", "final") if key in sown}
    elif isinstance(layer, int) and -len(outputs) <= layer < len(outputs):
        activations = outputs[layer]
    elif layer in sown and layer != OUTPUTS:
        activations = sown[layer][0]
    else:
        names = [repr(name) for name in sorted(sown) if name != OUTPUTS]
        names += [f"0 to {len(outputs) - 1}"] if outputs else []
        choices = ", ".join(names) or "none"
        raise UserError(f"The tower of {field!r} has no layer {layer!r}. It has: {choices}.")
    return activations, batch.valid, batch.document_id
