"""Serves a page on this machine that searches with a trained model.

    big-retrieval demo --run=RUN                            # the run's own evaluation data
    big-retrieval demo --run=RUN --data=FILES               # your documents, encoded at the start
    big-retrieval demo --index=INDEX                        # an index
    big-retrieval demo --run=RUN,RUN                        # several models side by side

It searches by words, by an image, and for the neighbors of a document, and answers programs with
JSON under /api. It listens at 127.0.0.1 alone unless --host says otherwise. Ctrl-C ends it.
"""

from absl import flags

from big_retrieval.cli import columns
from big_retrieval.runtime.sigterm import unwinding_on_sigterm

LOG = True
WITHOUT = ("config", "workdir", "wait")
RUN = flags.DEFINE_list("run", [], "Run or checkpoint folders of the models")
INDEX = flags.DEFINE_list("index", [], "Index folders, of the same documents")
DATA = flags.DEFINE_string(
    "data", "", "Files of documents, as of index; or evals.NAME or data, of the run's config"
)
QUERY_FIELD = flags.DEFINE_string("query_field", "", "Of the model, by which words are read")
LIMIT = flags.DEFINE_integer(
    "limit", 10_000, "Documents encoded at the start, at most", lower_bound=1
)
HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to listen at; 0.0.0.0: for all machines")
PORT = flags.DEFINE_integer(
    "port", 8000, "Port to listen at; 0: any that is free", lower_bound=0, upper_bound=65535
)


def main() -> None:
    """Serves what the flags ask for."""
    from big_retrieval.demo.load_collection import DemoOptions
    from big_retrieval.demo.server import serve

    options = DemoOptions(
        runs=tuple(RUN.value),
        indexes=tuple(INDEX.value),
        data=DATA.value,
        query_field=QUERY_FIELD.value,
        limit=LIMIT.value,
        **columns.named(),
    )
    with unwinding_on_sigterm():
        serve(options, HOST.value, PORT.value)
