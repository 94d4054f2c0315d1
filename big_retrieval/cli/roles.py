"""The flags that say what the columns of --data are: --image, --text, --query and others."""

from absl import flags

ROLES = {
    "image": "column of images: files, or their content; empty: there is none",
    "text": "column of captions",
    "query": "column of questions or queries",
    "document": "column of answers, or of the documents' texts",
    "score": "column of clicks, ranks or other scores of judged pairs; empty: there is none",
    "document_id": "column of the documents' ids, of judged pairs",
}
FLAGS = {
    name: flags.DEFINE_string(name, None, f"With --data: {about}") for name, about in ROLES.items()
}
flags.DEFINE_alias("answer", "document")


def said() -> dict[str, str | None]:
    """What the flags say, as keys of `own_data.roles.Said`."""
    return {name: flag.value for name, flag in FLAGS.items()}
