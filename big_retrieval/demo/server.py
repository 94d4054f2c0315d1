"""Server of the demo, from flags to a clean end."""

# The libraries of the extra need not be installed where types are checked.
# pyright: reportMissingImports=false

import contextlib
import importlib.util
import ipaddress
import logging
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.demo.options import DemoOptions

log = logging.getLogger(__name__)
EXTRA = "The demo needs starlette, uvicorn and Jinja2. Run pip install 'big_retrieval[demo]'."
MAX_CONNECTIONS = 512
BACKLOG = 256  # connections that wait for the server


@contextlib.contextmanager
def bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Binds an address (port 0 for any free port) before models are loaded."""
    try:
        family, _, _, _, name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UserError(f"--host={host} is not an address of this machine: {error}.") from None
    with socket.socket(family, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(name)
        except OSError as error:
            raise UserError(
                f"Cannot use port {port} of {host}: {error.strerror}. Choose another --port."
            ) from None
        yield bound


def check_extra() -> None:
    """Raises a UserError if the libraries of the extra are not installed."""
    for name in ("jinja2", "python_multipart", "starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise UserError(EXTRA)


def serve(options: "DemoOptions", host: str, port: int) -> None:
    """Opens the collection and serves it until Ctrl-C or SIGTERM; port 0 takes any free port."""
    check_extra()
    with bound_socket(host, port) as bound, tempfile.TemporaryDirectory() as folder:
        import uvicorn

        from big_retrieval.demo.app import make_app
        from big_retrieval.demo.load_collection import open_demo
        from big_retrieval.demo.service import Service

        service = Service(open_demo(options, Path(folder)))
        log.info("compiling the programs of searches ...")
        service.warm_up()
        config = uvicorn.Config(
            make_app(service, allowed_hosts(host)),
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            limit_concurrency=MAX_CONNECTIONS,
            backlog=BACKLOG,
            timeout_graceful_shutdown=3,
            lifespan="on",
        )
        bound.listen(BACKLOG)
        log.info(f"the demo is at {address(host, bound.getsockname()[1])} -- Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it after its end
            uvicorn.Server(config).run(sockets=[bound])
    log.info("the demo has ended")


def address(host: str, port: int) -> str:
    """Formats the address for a browser."""
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def allowed_hosts(host: str) -> list[str]:
    """Returns the accepted host names of requests: any name, except for a local server."""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return ["localhost", "127.0.0.1", "[::1]", "::1", host] if local else ["*"]
