"""Connections that send or read too slowly are closed; others are served meanwhile."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="needs the extra demo")

from big_retrieval.demo import connections  # noqa: E402
from big_retrieval.demo.connections import TimedConnection  # noqa: E402

GET = b"GET / HTTP/1.1\r\nhost: a\r\n"
LARGE = 64 * 2**20  # bytes, more than sockets hold


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers GET with a word or much, POST with its body."""
    body = b"much" * (LARGE // 4) if scope["path"] == "/much" else b"word"
    while scope["method"] == "POST" and (message := await receive()).get("more_body"):
        body += message["body"]
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body[: LARGE // 2], "more_body": True})
    await send({"type": "http.response.body", "body": body[LARGE // 2 :]})


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    for name, seconds in {"HEADERS": 0.5, "BODY": 0.6, "ANSWER": 0.7, "CHECKED": 0.05}.items():
        monkeypatch.setattr(connections, name, seconds)
    monkeypatch.setattr(connections, "CLIENTS", 20)
    monkeypatch.setattr(connections, "REFUSED", 2)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            app, http=TimedConnection, ws="none", lifespan="off", log_level="error",
            limit_concurrency=20, timeout_keep_alive=1,
        )
    )  # fmt: skip
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield listening.getsockname()
    server.should_exit = server.force_exit = True
    thread.join()


def read_to_end(connection: socket.socket, seconds: float = 5.0) -> int:
    """Waits until the server closes the connection; returns the bytes that came."""
    connection.settimeout(seconds)
    count = 0
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(2**20):
            count += len(part)
    return count


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        GET,
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nabc",
        GET + b"\r\n" + GET,
        GET + b"content-length: 10\r\n\r\nabc",
    ],
    ids=["nothing", "headers", "body", "second request", "body of an answered request"],
)
def test_incomplete_requests_time_out(address: tuple[str, int], sent: bytes) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(sent)
        read_to_end(connection)


def test_a_request_that_comes_byte_by_byte_times_out(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:

        def drip() -> None:
            for _ in range(100):
                connection.sendall(b"G")
                time.sleep(0.05)

        with pytest.raises(ConnectionError):
            drip()


def test_an_answer_that_nobody_reads_times_out(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(GET.replace(b"/ ", b"/much ") + b"\r\n")
        time.sleep(1.5)
        assert read_to_end(connection) < LARGE


def test_many_incomplete_requests_do_not_lock_the_demo(address: tuple[str, int]) -> None:
    held = [socket.create_connection(address) for _ in range(60)]
    for connection in held[:10]:
        connection.sendall(GET)
    read_to_end(held[-1], 0.3)  # beyond those that are told to come again
    time.sleep(1.0)
    with socket.create_connection(address) as connection:
        for _ in range(3):  # one connection may ask several times
            connection.sendall(GET + b"\r\n")
            time.sleep(0.3)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 OK")
    for connection in held:
        connection.close()
