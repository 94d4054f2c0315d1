"""From flags to a server that ends cleanly."""

# The libraries of the extra need not be installed where types are checked.
# pyright: reportMissingImports=false

import contextlib
import ipaddress
import logging
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.demo.opening import DemoOptions

log = logging.getLogger(__name__)
EXTRA = "the demo needs starlette and uvicorn: pip install 'big_retrieval[demo]'."
BACKLOG = 256  # connections that wait to be taken


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A context with a socket of an address, so that nobody else takes it while models are loaded.

    Args:
      host: a name or number of this machine.
      port: 0: any that is free.

    Raises:
      UserError: the address cannot be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as problem:
        raise UserError(f"--host={host} is no address of this machine: {problem}.") from None
    with socket.socket(found[0], socket.SOCK_STREAM) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            own.bind(found[4])
        except OSError as problem:
            raise UserError(
                f"port {port} of {host} cannot be had ({problem.strerror}): another program has "
                "it, or it is not allowed; give another one with --port."
            ) from None
        yield own


def check_extra() -> None:
    """Raises a UserError where the libraries of the extra are not installed."""
    try:
        import python_multipart  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise UserError(EXTRA) from None


def serve(options: "DemoOptions", host: str, port: int) -> None:
    """Opens what is searched, and serves it until Ctrl-C or SIGTERM.

    Args:
      options: what is searched.
      host: address to listen at.
      port: 0: any that is free.

    Raises:
      UserError: the address is taken, libraries are missing, or as `opening.open_demo`.
    """
    check_extra()
    with bound(host, port) as own, tempfile.TemporaryDirectory(prefix="big-retrieval-") as folder:
        import uvicorn

        from big_retrieval.demo.app import make_app
        from big_retrieval.demo.connections import TimedConnection, max_clients
        from big_retrieval.demo.opening import open_demo
        from big_retrieval.demo.service import Service

        service = Service(open_demo(options, Path(folder)))
        log.info("compiling what searches need ...")
        service.warm_up()
        config = uvicorn.Config(
            make_app(service, hosts(host)),
            log_level="warning",
            access_log=False,
            server_header=False,
            http=TimedConnection,
            ws="none",
            limit_concurrency=max_clients(),
            backlog=BACKLOG,
            timeout_graceful_shutdown=3,
            lifespan="on",
        )
        own.listen(BACKLOG)  # who comes at once waits for an answer
        log.info(f"the demo is at {address(host, own.getsockname()[1])} -- Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):  # raised again when all has ended
            uvicorn.Server(config).run(sockets=[own])
    log.info("the demo has ended")


def address(host: str, port: int) -> str:
    """The address that a browser takes."""
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def hosts(host: str) -> list[str]:
    """The names by which a server that listens at an address is called: all unless it is local."""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return ["localhost", "127.0.0.1", "[::1]", "::1", host] if local else ["*"]
