"""Serves a page on this machine that searches with a trained model.

    big-retrieval demo --run=RUN                            # the run's own evaluation data
    big-retrieval demo --run=RUN --data=FILES               # your documents, encoded at the start
    big-retrieval demo --index=INDEX                        # an index
    big-retrieval demo --run=RUN,RUN                        # several models side by side

It searches by words, by an image, and for the neighbors of a document, and answers programs with
JSON under /api. It listens at 127.0.0.1 only; --host opens it to other machines. Ctrl-C ends it.
"""

from dataclasses import dataclass
from typing import Annotated

from big_retrieval.cli.option_groups import PluginOptions
from big_retrieval.cli.options import Flag, select
from big_retrieval.demo.options import DemoOptions
from big_retrieval.runtime.sigterm import unwinding_on_sigterm

LOG = True


@dataclass(frozen=True, kw_only=True)
class DemoCommandOptions(DemoOptions, PluginOptions):
    host: str = "127.0.0.1"  # Address to listen at; 0.0.0.0 for all machines
    # Port to listen at; 0 for any that is free
    port: Annotated[int, Flag(low=0, high=65535)] = 8000


def main(options: DemoCommandOptions) -> None:
    from big_retrieval.demo.server import serve

    with unwinding_on_sigterm():
        serve(select(DemoOptions, options), options.host, options.port)
