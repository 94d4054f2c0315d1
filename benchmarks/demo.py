"""The demo under load: clients that ask everything at once, with oversized and broken uploads.

    python -m benchmarks.demo --run=RUN [--data=FILES] [--clients=50] [--requests=10000]

Starts `big-retrieval demo` with these flags in a process of its own, and asks it from threads of
this one, each with a connection that is kept open. What is asked is drawn from `mix` with a seed.
A status that a kind of request should not get, or no answer at all, is "lost". Memory is what the
server holds (resident, where Linux tells it): before, after, and at most.
"""

import argparse
import http.client
import io
import json
import random
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
from PIL import Image

READY = re.compile(r"the demo is at http://([\w.]+):(\d+)/")
BUSY = 503  # an answer that a full queue gives
WORDS = (
    "a",
    "small",
    "red",
    "circle",
    "left",
    "of",
    "big",
    "blue",
    "star",
    "symptoms",
    "are",
    "treat",
)
WARM = 200  # requests before memory is first looked at


@dataclass(frozen=True)
class Load:
    """One request.

    Attributes:
      kind: names it in the table.
      path: with the query.
      body: None: it is a GET.
      expected: statuses that it may get, besides `BUSY`.
    """

    kind: str
    path: str
    body: bytes | None = None
    expected: tuple[int, ...] = (200,)


def main() -> None:
    """Runs the load and prints the table."""
    args = flags()
    words = [f"--run={args.run}", f"--limit={args.limit}", "--port=0"]
    words += [f"--data={args.data}"] if args.data else []
    command = [sys.executable, "-m", "big_retrieval", "demo", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            host, port = _address(server)
            threading.Thread(target=_drained, args=(server,), daemon=True).start()
            row = _measure(args, host, port, server.pid)
        finally:
            server.send_signal(signal.SIGINT)
            ended = server.wait(30)
    row["exit status"] = ended
    print(json.dumps(row, indent=1))


def flags() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", required=True)
    parser.add_argument("--data", default="")
    parser.add_argument("--limit", type=int, default=10_000, help="documents")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _address(server: subprocess.Popen[str]) -> tuple[str, int]:
    assert server.stdout is not None
    for line in server.stdout:
        print(line, end="", file=sys.stderr)
        if found := READY.search(line):
            return found[1], int(found[2])
    raise SystemExit("the demo did not start")


def _drained(server: subprocess.Popen[str]) -> None:
    """Shows what the server says, so that its pipe does not fill."""
    assert server.stdout is not None
    for line in server.stdout:
        print(line, end="", file=sys.stderr)


def _measure(args: argparse.Namespace, host: str, port: int, pid: int) -> dict[str, object]:
    about = json.loads(_ask(http.client.HTTPConnection(host, port), Load("", "/api"))[1])
    makers = mix(about, args.seed)
    rng = random.Random(args.seed)
    names = rng.choices(list(makers), [share for share, _ in makers.values()], k=args.requests)
    loads = [makers[name][1](rng) for name in names]
    _run(host, port, loads[:WARM], 4)
    before = memory(pid)
    started = time.perf_counter()
    results = _run(host, port, loads, args.clients)
    seconds = time.perf_counter() - started
    time.sleep(1)
    return {
        "documents": about["documents"],
        "modes": [mode["mode"] for mode in about["modes"]],
        "clients": args.clients,
        "requests": len(loads),
        "seconds": round(seconds, 1),
        "requests a second": round(len(loads) / seconds, 1),
        "memory before, MiB": before["VmRSS"],
        "memory after, MiB": memory(pid)["VmRSS"],
        "memory at most, MiB": memory(pid)["VmHWM"],
        "lost": sum(status not in (*load.expected, BUSY) for load, status, _ in results),
        "busy": sum(status == BUSY for _, status, _ in results),
        "kinds": table(results),
    }


def table(results: Sequence[tuple[Load, int, float]]) -> dict[str, object]:
    """Statuses and percentiles of milliseconds of every kind."""
    statuses: defaultdict[str, Counter[int]] = defaultdict(Counter)
    times: defaultdict[str, list[float]] = defaultdict(list)
    for load, status, seconds in results:
        statuses[load.kind][status] += 1
        times[load.kind].append(1e3 * seconds)
    return {
        kind: {
            "statuses": dict(sorted(found.items())),
            **{f"p{p}": round(float(np.percentile(times[kind], p)), 1) for p in (50, 95, 99)},
        }
        for kind, found in sorted(statuses.items())
    }


def memory(pid: int) -> dict[str, int]:
    """Resident memory of a process now (VmRSS) and at most (VmHWM), MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return {name: int(kib) // 1024 for name, kib in re.findall(r"(VmRSS|VmHWM):\s+(\d+)", text)}


def _run(
    host: str, port: int, loads: Sequence[Load], clients: int
) -> list[tuple[Load, int, float]]:
    """Asks for everything; each client takes the next request when its last one is answered."""
    results: list[tuple[Load, int, float]] = []
    left, lock = iter(loads), threading.Lock()

    def work() -> None:
        connection = http.client.HTTPConnection(host, port, timeout=120)
        while True:
            with lock:
                load = next(left, None)
            if load is None:
                return
            started = time.perf_counter()
            status = _ask(connection, load)[0]
            seconds = time.perf_counter() - started
            with lock:
                results.append((load, status, seconds))

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return results


def _ask(connection: http.client.HTTPConnection, load: Load) -> tuple[int, bytes]:
    """The status and body of an answer; 0: there was none, even on a fresh connection."""
    for _ in range(2):  # a connection that was kept open may have been closed since
        try:
            connection.request("GET" if load.body is None else "POST", load.path, load.body)
            reply = connection.getresponse()
            return reply.status, reply.read()
        except (OSError, http.client.HTTPException):
            connection.close()
    return 0, b""


def mix(about: dict, seed: int) -> dict[str, tuple[int, Callable[[random.Random], Load]]]:
    """Kind of request -> its share in percent, and what draws one.

    Args:
      about: what the demo says of itself.
      seed: of pixels.
    """
    documents = about["documents"]
    images = any("image" in mode["reads"] for mode in about["modes"])
    sent = (200,) if images else (400,)
    good, broken = picture(seed), picture(seed)[:1500]
    large = bytes(9 * 2**20)

    def query(rng: random.Random) -> str:
        return quote(" ".join(rng.choices(WORDS, k=rng.randint(1, 12))))

    def number(rng: random.Random) -> int:
        return rng.randrange(documents)

    def post(kind: str, body: bytes, *expected: int) -> Callable[[random.Random], Load]:
        load = Load(kind, "/api/search?k=10", body, expected if images else (400, 413))
        return lambda rng: load

    shown = (200,) if about["pictures"] else (404,)
    return {
        "words": (45, lambda rng: Load("words", f"/api/search?query={query(rng)}")),
        "page": (10, lambda rng: Load("page", f"/?query={query(rng)}")),
        "neighbors": (12, lambda rng: Load("neighbors", f"/api/neighbors/{number(rng)}")),
        "document": (
            4, lambda rng: Load("document", f"/api/documents/{number(rng)}?query={query(rng)}")
        ),
        "picture": (
            15, lambda rng: Load("picture", f"/pictures/{number(rng)}", expected=shown)
        ),
        "image": (6, lambda rng: Load("image", "/api/search?k=10", good, sent)),
        "oversized": (2, post("oversized", large, 413)),
        "broken": (2, post("broken", broken, 422)),
        "bomb": (1, post("bomb", bomb(), 413)),
        "no image": (1, post("no image", b"<html>", 415)),
        "long query": (1, lambda rng: Load("long query", f"/?query={'x' * 2000}", None, (414,))),
        "no document": (
            1, lambda rng: Load("no document", f"/api/neighbors/{documents}", None, (404,))
        ),
    }  # fmt: skip


def picture(seed: int) -> bytes:
    """A PNG file of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 255, (128, 160, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


def bomb() -> bytes:
    """A PNG file of some bytes that promises 2,500 megapixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    head = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000)))


if __name__ == "__main__":
    main()
