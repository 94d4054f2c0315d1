"""The page in a browser: all actions, by mouse and keyboard, with and without scripts.

Skips without playwright and chromium.
"""

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from big_retrieval.demo.load_collection import Demo
from big_retrieval.demo.service import Service

pytestmark = pytest.mark.slow
ASK = "a small red circle"
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    """A demo that serves from a thread."""
    uvicorn: Any = pytest.importorskip("uvicorn", reason="needs the extra demo")
    from big_retrieval.demo.app import make_app

    app = make_app(service)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright: Any = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The home page on a wide screen; errors of the browser fail the test."""
    with browser.new_context(viewport=WIDE) as context:
        opened = context.new_page()
        errors: list[str] = []
        opened.on("pageerror", lambda error: errors.append(str(error)))
        opened.on("console", lambda x: errors.append(x.text) if x.type == "error" else None)
        opened.goto(address)
        yield opened
        assert not errors


@pytest.fixture
def picture(demo: Demo, tmp_path: Path) -> Path:
    """The file of document 7's image."""
    Image.fromarray(demo.collection.image(7)).save(tmp_path / "7.png")
    return tmp_path / "7.png"


def until(page: Any, expression: str) -> None:
    """Waits until JavaScript is true; the page's policy forbids `wait_for_function`."""
    for _ in range(300):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(expression)


def test_words_neighbors_details_and_back(page: Any, address: str) -> None:
    page.keyboard.press("Tab")  # to the link that skips the forms
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "query"
    page.keyboard.type(ASK)
    page.keyboard.press("Enter")
    page.wait_for_selector(".ways .way")
    assert page.locator(".way h3").all_inner_texts()[0].startswith("Sparse")
    assert page.locator(".way").count() == 3
    assert "30 answers" in page.locator("#said").inner_text()
    assert "encoding" in page.locator(".times").first.inner_text()
    loaded = "[...document.querySelectorAll('main img')].slice(0, 3).every(x => x.naturalWidth > 0)"
    until(page, loaded)

    page.get_by_role("link", name="Dense").click()
    until(page, "document.querySelectorAll('.way').length == 1")
    page.get_by_role("link", name="More answers").click()
    page.wait_for_selector("ol.answers[start='11']")
    assert page.evaluate("document.activeElement.id") == "found"
    page.go_back()
    page.wait_for_selector("ol.answers[start='1']")
    page.go_back()
    until(page, "document.querySelectorAll('.way').length == 3")

    page.locator(".way .document").first.click()
    page.wait_for_url("**/neighbors/*")
    page.wait_for_selector(".asked img")
    page.get_by_role("link", name="details").first.click()
    page.wait_for_url("**/documents/*")
    page.wait_for_selector(".bars li")
    until(page, "document.querySelector('.heats img').naturalWidth > 0")
    page.reload()
    assert page.locator(".bars li").count() > 0


def test_image_is_found_and_large_file_rejected(page: Any, picture: Path, tmp_path: Path) -> None:
    page.set_input_files("#image", picture)
    page.wait_for_selector("text=Found for this image")
    first = page.locator(".way .document").first
    assert first.get_attribute("href") == "/neighbors/7"
    assert page.evaluate("document.querySelector('.asked img').naturalWidth") > 0
    (tmp_path / "large.png").write_bytes(bytes(9 * 2**20))
    page.set_input_files("#image", tmp_path / "large.png")  # the browser does not send it
    assert "8 MiB are the most" in page.locator("[role=alert]").inner_text()


def test_answers_to_image_stay_in_history(page: Any, address: str, picture: Path) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method))
    page.goto(f"{address}/?query={ASK}")
    page.set_input_files("#image", picture)
    page.wait_for_selector("text=Found for this image")
    page.go_back()
    page.wait_for_selector(f"h2:has-text('{ASK}')")
    page.go_forward()
    page.wait_for_selector("text=Found for this image")
    assert page.locator(".way .document").first.get_attribute("href") == "/neighbors/7"
    page.locator(".skip").focus()
    page.keyboard.press("Enter")  # skips to the answers, which stay
    assert page.evaluate("document.activeElement.id") == "found"
    page.wait_for_timeout(300)
    assert page.locator("text=Found for this image").count() == 1
    page.locator(".way .document").first.click()
    page.wait_for_url("**/neighbors/7")
    page.go_back()
    page.wait_for_selector("text=Found for this image")
    page.reload()
    page.wait_for_selector("text=Found for this image")
    assert sent.count("POST") == 1
    assert page.evaluate("document.getElementById('image').files.length") == 0
    page.set_input_files("#image", picture)
    until(page, "!document.body.hasAttribute('aria-busy')")
    page.wait_for_timeout(300)
    assert sent.count("POST") == 2


def test_page_shows_errors(browser: Any, address: str, tmp_path: Path) -> None:
    with browser.new_context(viewport=WIDE) as context:
        page = context.new_page()
        page.goto(address)
        (tmp_path / "broken.png").write_bytes(b"no image")
        page.set_input_files("#image", tmp_path / "broken.png")
        page.wait_for_selector("[role=alert]")
        assert "Not an image that can be read" in page.locator("[role=alert]").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_and_dark_screens(browser: Any, address: str, scheme: str) -> None:
    with browser.new_context(viewport=NARROW, color_scheme=scheme) as context:
        page = context.new_page()
        for path in ("/", f"/?query={ASK}", "/neighbors/3", f"/documents/3?query={ASK}", "/none"):
            page.goto(address + path)
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= NARROW["width"], path
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 24, 29)")


def test_forms_and_links_work_without_scripts(browser: Any, address: str, picture: Path) -> None:
    with browser.new_context(viewport=WIDE, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(address)
        page.fill("#query", ASK)
        page.keyboard.press("Enter")
        page.wait_for_selector(".way")
        assert page.locator(".way").count() == 3
        page.set_input_files("#image", picture)
        page.get_by_role("button", name="Search by this image").click()
        page.wait_for_selector("text=Found for this image")
        page.locator(".way .document").first.click()
        page.wait_for_url("**/neighbors/7")
