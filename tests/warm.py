"""Processes without a start: forks of a server that has imported the package.

To start Python and to import jax and the package takes seconds, more than many a command takes on
the few records of a test. The server, `python tests/warm.py serve SOCKET`, imports all of it once
and starts no backend of jax. For each client, `python tests/warm.py SOCKET WORDS` in place of
`python WORDS`, it forks: the fork has the client's words, environment, folder and standard
streams, and the client ends as the fork ends. Signals to the client reach the fork: SIGINT and
SIGTERM as such, and the fork of a client that is killed is killed.

A fork is a process of its own but for this: jax has read its settings (JAX_...) in the server, the
hashes of strings are the server's, and the modules of the package that define no flags are there.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
HEAD = 8  # bytes that say how long a request is
# Modules that each fork imports.
OWN = ("big_retrieval.main", "big_retrieval.launch", "big_retrieval.__")


def client(path: str, words: list[str]) -> None:
    """Asks the server for a fork and ends as the fork ends."""
    asked = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}
    request = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [len(request).to_bytes(HEAD, "big")], [0, 1, 2])
        server.sendall(request)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: server.sendall(bytes([number])))
        status = int(server.recv(HEAD) or 1)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def serve(path: str) -> list[str]:
    """Forks for clients until standard input is closed.

    Returns:
      The client's words, in a fork, which has taken the client's place.
    """
    _import_everything()
    running: dict[int, tuple[int, socket.socket]] = {}  # descriptor of a fork -> pid, client
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            clients = {each: pid for pid, each in running.values()}
            ready: list[Any] = select.select([0, listener, *running, *clients], [], [])[0]
            if 0 in ready:
                for pid in clients.values():
                    os.kill(pid, signal.SIGKILL)
                sys.exit()
            for each in ready:
                if each is listener:
                    asking = listener.accept()[0]
                    asked, streams = _receive(asking)
                    pid = os.fork()
                    if pid == 0:
                        for other in (asking, *clients):
                            other.close()
                        _become(asked, streams)
                        return asked["words"]
                    for stream in streams:
                        os.close(stream)
                    running[os.pidfd_open(pid)] = (pid, asking)
                elif each in running:
                    pid, asking = running.pop(each)
                    os.close(each)
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    clients.pop(asking)
                    with asking, contextlib.suppress(OSError):
                        asking.sendall(str(status).encode())
                elif each in clients:
                    number = each.recv(1)  # nothing from a client that is no more
                    os.kill(clients[each], number[0] if number else signal.SIGKILL)


def _receive(asking: socket.socket) -> tuple[dict, list[int]]:
    """A client's request and its standard streams."""
    head, streams, _, _ = socket.recv_fds(asking, HEAD, 3)
    request = asking.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
    return json.loads(request), streams


def _become(asked: dict, streams: list[int]) -> None:
    """Gives this process the client's streams, folder, environment and words."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(asked["folder"])
    if _settings(asked["environment"]) != _settings(os.environ):
        sys.exit("tests/warm.py: jax has been imported with other settings")
    os.environ.clear()
    os.environ.update(asked["environment"])
    places = asked["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [asked["folder"], *(place for place in places if place)]


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What jax reads when it is imported."""
    from jax import config

    return {name: x for name, x in environment.items() if name.lower() in config.values}


def _import_everything() -> None:
    import gc
    import importlib
    import pkgutil

    import big_retrieval

    for module in pkgutil.walk_packages(big_retrieval.__path__, "big_retrieval."):
        if not module.name.startswith(OWN):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()  # no fork copies these objects to look through them


def run(words: list[str]) -> None:
    """What `python WORDS` does."""
    import runpy

    first, *rest = words
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, str(Path(first).resolve().parent)
        runpy.run_path(first, run_name="__main__")


@contextlib.contextmanager
def server(folder: Path) -> Iterator[list[str]]:
    """A context with a server, whose socket is in a folder; the words that stand for `python`."""
    path = str(folder / "socket")
    words = [sys.executable, "-m", "tests.warm", "serve", path]
    started = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE)
    try:
        while not Path(path).exists():
            assert started.poll() is None
            time.sleep(0.05)
        yield [sys.executable, "-ISE", __file__, path]
    finally:
        started.communicate()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        run(serve(sys.argv[2]))
    else:
        client(sys.argv[1], sys.argv[2:])
