"""What the layers of a field's tower compute, as the towers sow it; traced by jax."""

from typing import Any

from big_retrieval.batch import Batch
from big_retrieval.errors import UserError
from big_retrieval.models.towers import RetrievalModel

OUTPUTS = "layer_outputs"  # a tuple of arrays, one a layer


def _sown(model: RetrievalModel, collections: Any, batch: Batch, field: str) -> dict[str, Any]:
    """Name -> values, of all that a field's tower sows."""
    applied: Any = model.apply(collections, batch.fields, mutable=["intermediates"])
    return applied[1].get("intermediates", {}).get(model.fields[field].tower, {})


def of_layer(
    model: RetrievalModel, collections: Any, batch: Batch, field: str, layer: str | int
) -> Any:
    """The activations of a layer, which rows are valid, and their records.

    Args:
      model: towers and heads.
      collections: what the model is applied to.
      batch: with the field.
      field: its name.
      layer: see `Encoder.features`.

    Raises:
      UserError: the tower has no such layer.
    """
    inside = _sown(model, collections, batch, field)
    outputs = inside.get(OUTPUTS, ())
    if isinstance(layer, int) and -len(outputs) <= layer < len(outputs):
        found = outputs[layer]
    elif layer in inside and layer != OUTPUTS:
        found = inside[layer][0]
    else:
        names = [repr(name) for name in sorted(inside) if name != OUTPUTS]
        names += [f"0 to {len(outputs) - 1}"] if outputs else []
        raise UserError(
            f"the tower of {field!r} gives no layer {layer!r}; it has: "
            f"{', '.join(names) or 'none'}."
        )
    return found, batch.valid, batch.document_id


def of_all_layers(model: RetrievalModel, collections: Any, batch: Batch, field: str) -> Any:
    """The activations of all layers by name, see `Encoder.all_features`, and the valid rows."""
    inside = _sown(model, collections, batch, field)
    found = {str(number): output for number, output in enumerate(inside.get(OUTPUTS, ()))}
    found |= {key: inside[key][0] for key in ("embedding", "final") if key in inside}
    return found, batch.valid
