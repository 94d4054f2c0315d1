"""Routes of the demo: answers, errors with their status, and texts that stay texts."""

import io
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from PIL import Image

from big_retrieval.demo.load_collection import Demo
from big_retrieval.demo.service import Overloaded, SearchQuery, Service
from tests.data.files import png_header
from tests.demo.conftest import COUNT

ASK = "a small red circle"
pytestmark = pytest.mark.slow  # compiles models


def png(size: int = 32) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (size, size, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


def test_search_answers_by_every_mode(client: Any, demo: Demo) -> None:
    modes = client.get("/api/search", params={"query": ASK, "k": 4}).json()["modes"]
    assert [result["mode"] for result in modes] == ["sparse", "bag", "dense"]
    for mode, result in zip(demo.modes, modes, strict=True):
        documents, expected = mode.search(mode.encode("text", ASK), 4)
        assert [answer["number"] for answer in result["answers"]] == documents.tolist()
        scores = [answer["score"] for answer in result["answers"]]
        np.testing.assert_allclose(scores, expected, rtol=1e-4)
        assert min(result["encode_ms"], result["search_ms"]) >= 0
    terms = modes[0]["answers"][0]["terms"]
    assert terms
    assert sum(term["share"] for term in terms) <= 1 + 1e-6


def test_pages_of_answers_continue(client: Any) -> None:
    def numbers(**params: Any) -> list[int]:
        answer = client.get("/api/search", params={"query": ASK, "mode": "dense", **params}).json()
        return [x["number"] for x in answer["modes"][0]["answers"]]

    numbers_of_all = numbers(k=COUNT)
    assert sorted(numbers_of_all) == list(range(COUNT))
    assert numbers(k=10) + numbers(k=10, start=10) + numbers(k=10, start=20) == numbers_of_all
    assert numbers(k=10, start=30) == []


def test_neighbors_and_images_are_searched(client: Any, demo: Demo) -> None:
    modes = client.get("/api/neighbors/5?k=3").json()["modes"]
    assert [result["mode"] for result in modes] == ["sparse", "dense"]
    assert all(x["number"] != 5 for result in modes for x in result["answers"])
    stream = io.BytesIO()
    Image.fromarray(demo.collection.image(5)).save(stream, "png")
    data = stream.getvalue()
    assert client.get("/pictures/5").headers["content-type"].startswith("image/")
    sent = client.post("/api/search?k=1", content=data, headers={"content-type": "image/png"})
    assert [result["answers"][0]["number"] for result in sent.json()["modes"]] == [5, 5]
    form = client.post("/image", files={"image": ("5.png", data, "image/png")})
    assert form.status_code == 200
    assert "Found for this image" in form.text


def test_document_has_terms_and_pictures(client: Any) -> None:
    (lexical,) = client.get("/api/documents/3", params={"query": ASK}).json()["modes"]
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


def test_pages_need_no_script_and_have_policy(client: Any) -> None:
    search = f"/?query={ASK}"
    for address in ("/", search, f"{search}&mode=bag", "/neighbors/1", "/documents/1"):
        reply = client.get(address)
        assert reply.status_code == 200, address
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "style=" not in reply.text  # forbidden by the policy
        assert "http" not in re.sub(r"Refused|https?-equiv", "", reply.text)
        assert reply.text.count("<h2") == 1
    assert client.get("/style.css").headers["content-type"].startswith("text/css")
    assert "javascript" in client.get("/script.js").headers["content-type"]


class Tags(HTMLParser):
    """Sources of the scripts and images of a page, and attributes that contain scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[str, list[str]] = {"script": [], "img": []}
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.sources:
            self.sources[tag].append(dict(attrs).get("src") or "")
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_markup_stays_text(client: Any, demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    markup = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
    monkeypatch.setattr(demo.collection, "shown", [markup] * COUNT)
    for address, params in (
        ("/", {}), ("/", {"query": markup}), ("/", {"query": "a", "mode": markup}),
        ("/documents/1", {"query": markup}), ("/documents/1", {"like": markup}),
        ("/pictures/1", {"term": markup, "mode": "sparse"}), ("/neighbors/1", {}),
        (f"/{markup}", {}),
    ):  # fmt: skip
        tags = Tags()
        tags.feed(client.get(address, params=params).text)
        assert all(src.startswith("/script.js") for src in tags.sources["script"]), address
        assert all(src.startswith("/pictures/") for src in tags.sources["img"]), address
        assert not tags.handlers, address


@pytest.mark.parametrize(
    ("address", "status", "words"),
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
def test_api_rejects_wrong_request(client: Any, address: str, status: int, words: str) -> None:
    reply = client.get(address)
    assert reply.status_code == status
    assert reply.json()["error"]["status"] == status
    assert words in reply.json()["error"]["message"]


def test_api_rejects_wrong_image(client: Any) -> None:
    from big_retrieval.demo.uploads import MAX_BODY

    good = png()
    for data, status, words in (
        (b"", 400, "No image"),
        (b"<svg onload=alert(1)>", 415, "Not an image that can be read"),
        (good[:60] + b"\0" * 40, 422, "the image is not a readable image"),
        (png_header(5000, 5000), 413, "more than 16 megapixels"),
        (png_header(60000, 60000), 413, "more than 16 megapixels"),
        (b"x" * (MAX_BODY + 1), 413, "larger than 8 MiB"),
    ):
        reply = client.post("/api/search", content=data)
        assert reply.status_code == status, (words, reply.text)
        assert reply.json()["error"]["message"].count(words) == 1
    large = client.post("/image", files={"image": ("a.png", b"x" * (9 * 2**20), "image/png")})
    assert large.status_code == 413
    assert "larger than 8 MiB" in large.text
    other = client.post("/image", files={"other": ("a.png", good)})
    assert other.status_code == 400
    assert "as the file `image` of a form" in other.text
    assert client.post("/api/search", content=good).status_code == 200
    assert client.put("/api/search", content=good).status_code == 405


@pytest.mark.parametrize(("error", "status"), [(Overloaded(), 503), (RuntimeError("secret"), 500)])
def test_overload_and_bugs_are_errors_without_details(
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


def test_other_host_names_are_rejected(service: Service) -> None:
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
    overview = client.get("/api").json()
    assert overview["documents"] == COUNT
    assert overview["limits"]["k"] == 100
    for line in overview["routes"]:
        method, address = line.split(" ")
        path = address.split("?")[0].replace("NUMBER", "1")
        query = {"query": "a"} if "query=" in address else {}
        sent = {"content": png()} if method == "POST" else {}
        assert client.request(method, path, params=query, **sent).status_code == 200, line
