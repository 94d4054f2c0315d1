"""The routes: answers, errors with the right status, and nothing of a caption as markup."""

import io
import json
import re
import struct
import zlib
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from PIL import Image

from big_retrieval.demo.load_collection import Demo
from big_retrieval.demo.service import Overloaded, SearchQuery, Service
from tests.demo.conftest import COUNT

ASK = "a small red circle"
pytestmark = pytest.mark.slow  # for what is compiled


def png(size: int = 32) -> bytes:
    """A picture with random pixels."""
    pixels = np.random.default_rng(0).integers(0, 255, (size, size, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


def bomb(side: int) -> bytes:
    """A PNG file of some bytes whose head promises a large picture."""
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + head
    body = struct.pack(">I", len(head)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    data = zlib.compress(b"\0" * 1000)
    rest = b"IDAT" + data
    return (
        b"\x89PNG\r\n\x1a\n"
        + body
        + struct.pack(">I", len(data))
        + rest
        + struct.pack(">I", zlib.crc32(rest))
    )


def test_words_are_answered_by_every_mode(client: Any, demo: Demo) -> None:
    found = client.get("/api/search", params={"query": ASK, "k": 4}).json()
    assert [result["mode"] for result in found["modes"]] == ["sparse", "bag", "dense"]
    for mode, result in zip(demo.modes, found["modes"], strict=True):
        documents, scores = mode.search(mode.encode("text", ASK), 4)
        assert [answer["number"] for answer in result["answers"]] == documents.tolist()
        given = [answer["score"] for answer in result["answers"]]
        np.testing.assert_allclose(given, scores, rtol=1e-4)
        assert min(result["encode_ms"], result["search_ms"]) >= 0
    terms = found["modes"][0]["answers"][0]["terms"]
    assert terms
    assert sum(each["share"] for each in terms) <= 1 + 1e-6


def test_pages_continue_where_the_last_ended(client: Any) -> None:
    def numbers(**params: Any) -> list[int]:
        found = client.get("/api/search", params={"query": ASK, "mode": "dense", **params}).json()
        return [each["number"] for each in found["modes"][0]["answers"]]

    whole = numbers(k=COUNT)
    assert sorted(whole) == list(range(COUNT))
    assert numbers(k=10) + numbers(k=10, start=10) + numbers(k=10, start=20) == whole
    assert numbers(k=10, start=30) == []


def test_neighbors_leave_the_document_out_and_an_image_finds_itself(
    client: Any, demo: Demo
) -> None:
    found = client.get("/api/neighbors/5?k=3").json()
    assert [result["mode"] for result in found["modes"]] == ["sparse", "dense"]
    assert all(each["number"] != 5 for way in found["modes"] for each in way["answers"])
    kind, data = client.get("/pictures/5").headers["content-type"], _original(demo, 5)
    assert kind.startswith("image/")
    sent = client.post("/api/search?k=1", content=data, headers={"content-type": "image/png"})
    assert [way["answers"][0]["number"] for way in sent.json()["modes"]] == [5, 5]
    form = client.post("/image", files={"image": ("5.png", data, "image/png")})
    assert form.status_code == 200
    assert "Found for this image" in form.text


def _original(demo: Demo, number: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(demo.collection.image(number)).save(stream, "png")
    return stream.getvalue()


def test_a_document_has_terms_that_add_up_and_pictures_of_them(client: Any, demo: Demo) -> None:
    found = client.get("/api/documents/3", params={"query": ASK}).json()
    (lexical,) = found["modes"]
    assert lexical["mode"] == "sparse"
    assert sum(term["value"] for term in lexical["terms"]) <= lexical["score"] * (1 + 1e-5)
    heat = client.get(lexical["terms"][0]["heat_map"])
    assert heat.headers["content-type"].startswith("image/")
    with Image.open(io.BytesIO(heat.content)) as image:
        assert min(image.size) >= 32
    assert client.get("/pictures/3?term=nosuchterm&mode=sparse").status_code == 400
    assert client.get("/pictures/3?term=red&mode=dense").status_code == 400
    page = client.get("/documents/3", params={"query": ASK}).text
    assert "Grad-CAM" in page  # of the dense model
    source = re.search(r'src="(/pictures/3\?query=[^"]+)"', page)
    assert source is not None
    assert client.get(source[1].replace("&amp;", "&")).headers["content-type"].startswith("image/")


def test_pages_need_no_script_and_are_shut(client: Any) -> None:
    for address in (
        "/",
        f"/?query={ASK}",
        f"/?query={ASK}&mode=bag",
        "/neighbors/1",
        "/documents/1",
    ):
        reply = client.get(address)
        assert reply.status_code == 200, address
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "style=" not in reply.text  # which the policy forbids
        assert "http" not in re.sub(r"Refused|https?-equiv", "", reply.text)
        assert reply.text.count("<h2") == 1
    assert client.get("/style.css").headers["content-type"].startswith("text/css")
    assert "javascript" in client.get("/script.js").headers["content-type"]


class Tags(HTMLParser):
    """The sources of the scripts and images of a page, and attributes that hold scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[str]] = {"script": [], "img": []}
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.found:
            self.found[tag].append(dict(attrs).get("src") or "")
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_markup_in_queries_and_captions_stays_text(
    client: Any, demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    nasty = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
    monkeypatch.setattr(demo.collection, "shown", [nasty] * COUNT)
    for address, params in (("/", {}), ("/", {"query": nasty}), ("/neighbors/1", {}),
                            ("/documents/1", {"query": nasty}),
                            ("/", {"query": "a", "mode": nasty}),
                            ("/pictures/1", {"term": nasty, "mode": "sparse"}),
                            ("/documents/1", {"like": nasty}), (f"/{nasty}", {})):  # fmt: skip
        tags = Tags()
        tags.feed(client.get(address, params=params).text)
        assert all(src.startswith("/script.js") for src in tags.found["script"]), address
        assert all(src.startswith("/pictures/") for src in tags.found["img"]), address
        assert not tags.handlers, address


@pytest.mark.parametrize(
    ("address", "status", "says"),
    [
        ("/api/search", 400, "query is missing"),
        ("/api/search?query=%20", 400, "query is missing"),
        ("/api/search?query=" + "x" * 1001, 414, "at most 1,000"),
        ("/api/search?query=a&k=0", 400, "from 1 to 100"),
        ("/api/search?query=a&k=101", 400, "from 1 to 100"),
        ("/api/search?query=a&k=ten", 400, "'ten'"),
        ("/api/search?query=a&start=-1", 400, "from 0 to 999"),
        ("/api/search?query=a&mode=none", 400, "Use one of: sparse, bag, dense"),
        ("/api/neighbors/1?mode=bag", 400, "cannot search by the neighbors"),
        (f"/api/neighbors/{COUNT}", 404, f"0 to {COUNT - 1}"),
        ("/api/neighbors/99999999999999999999999", 404, "No document"),
        ("/api/documents/1?like=x", 404, "No document"),
        ("/api/documents/..%2f..%2fetc%2fpasswd", 404, "Not Found"),
        ("/api/nothing", 404, "Not Found"),
    ],
)
def test_what_cannot_be_asked_is_said_as_json(
    client: Any, address: str, status: int, says: str
) -> None:
    reply = client.get(address)
    assert reply.status_code == status
    assert reply.json()["error"]["status"] == status
    assert says in reply.json()["error"]["message"]


def test_images_that_cannot_be_read_are_refused(client: Any) -> None:
    good = png()
    from big_retrieval.demo.uploads import MAX_BODY

    for data, status, says in (
        (b"", 400, "No image"),
        (b"<svg onload=alert(1)>", 415, "Not an image that can be read"),
        (good[:60] + b"\0" * 40, 422, "the image is not a readable image"),
        (bomb(5000), 413, "more than 16 megapixels"),
        (bomb(60000), 413, "more than 16 megapixels"),
        (b"x" * (MAX_BODY + 1), 413, "larger than 8 MiB"),
    ):
        reply = client.post("/api/search", content=data)
        assert reply.status_code == status, (says, reply.text)
        assert reply.json()["error"]["message"].count(says) == 1
    large = client.post("/image", files={"image": ("a.png", b"x" * (9 * 2**20), "image/png")})
    assert large.status_code == 413
    assert "larger than 8 MiB" in large.text
    other = client.post("/image", files={"other": ("a.png", good)})
    assert other.status_code == 400
    assert "as the file `image` of a form" in other.text
    assert client.post("/api/search", content=good).status_code == 200
    assert client.put("/api/search", content=good).status_code == 405


@pytest.mark.parametrize(("error", "status"), [(Overloaded(), 503), (RuntimeError("secret"), 500)])
def test_load_and_bugs_are_errors_without_details(
    client: Any, service: Service, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    async def fail(query: SearchQuery, key: str = "") -> Any:
        raise error

    monkeypatch.setattr(service, "search", fail)
    for address in ("/api/search?query=a", "/?query=a"):
        reply = client.get(address)
        assert reply.status_code == status
        assert reply.headers.get("retry-after") == ("1" if status == 503 else None)
        assert "secret" not in reply.text
    assert client.get("/api/health").json()["status"] == "ok"


def test_other_names_of_the_host_are_refused(service: Service) -> None:
    pytest.importorskip("starlette", reason="needs the extra demo")
    from starlette.testclient import TestClient

    from big_retrieval.demo.app import make_app
    from big_retrieval.demo.server import allowed_hosts

    assert allowed_hosts("0.0.0.0") == ["*"]
    local = make_app(service, allowed_hosts("127.0.0.1"))
    assert TestClient(local, base_url="http://127.0.0.1:8000").get("/api/health").is_success
    stranger = TestClient(local, base_url="http://evil.example")
    for address in ("/api/health", "/", "/script.js"):
        reply = stranger.get(address)
        assert reply.status_code == 400
        assert service.demo.collection.name not in reply.text
        assert "content-security-policy" in reply.headers


def test_every_route_of_the_overview_answers(client: Any) -> None:
    found = client.get("/api").json()
    assert found["documents"] == COUNT
    assert found["limits"]["k"] == 100
    for line in found["routes"]:
        method, address = line.split(" ")
        path = address.split("?")[0].replace("NUMBER", "1")
        query = {"query": "a"} if "query=" in address else {}
        sent = {"content": png()} if method == "POST" else {}
        assert client.request(method, path, params=query, **sent).status_code == 200, line
    assert json.dumps(found)
