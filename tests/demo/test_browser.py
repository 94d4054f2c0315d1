"""The page in a browser: every action, by mouse and by keyboard, with and without scripts.

Needs the library playwright and Debian's chromium, and skips without them.
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
        found = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The start of the demo on a wide screen; what the browser complains of fails the test."""
    with browser.new_context(viewport=WIDE) as context:
        opened = context.new_page()
        problems: list[str] = []
        opened.on("pageerror", lambda error: problems.append(str(error)))
        opened.on(
            "console",
            lambda message: problems.append(message.text) if message.type == "error" else None,
        )
        opened.goto(address)
        yield opened
        assert not problems


def until(page: Any, expression: str) -> None:
    """Waits until JavaScript is true in the page, whose policy forbids `wait_for_function`."""
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
    page.reload()  # the address by itself shows the same
    assert page.locator(".bars li").count() > 0


def test_an_image_is_found_and_a_broken_one_is_refused(
    page: Any, demo: Demo, tmp_path: Path
) -> None:
    Image.fromarray(demo.collection.image(7)).save(tmp_path / "7.png")
    page.set_input_files("#image", tmp_path / "7.png")
    page.wait_for_selector("text=Found for this image")
    first = page.locator(".way .document").first
    assert first.get_attribute("href") == "/neighbors/7"
    assert page.evaluate("document.querySelector('.asked img').naturalWidth") > 0
    (tmp_path / "large.png").write_bytes(bytes(9 * 2**20))
    page.set_input_files("#image", tmp_path / "large.png")  # the browser does not send it
    assert "8 MiB are the most" in page.locator("[role=alert]").inner_text()


def test_answers_to_an_image_stay_in_the_history(
    page: Any, address: str, demo: Demo, tmp_path: Path
) -> None:
    Image.fromarray(demo.collection.image(7)).save(tmp_path / "7.png")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method))
    page.goto(f"{address}/?query={ASK}")
    page.set_input_files("#image", tmp_path / "7.png")
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
    page.set_input_files("#image", tmp_path / "7.png")
    until(page, "!document.body.hasAttribute('aria-busy')")
    page.wait_for_timeout(300)
    assert sent.count("POST") == 2


def test_errors_are_said_in_the_page(browser: Any, address: str, tmp_path: Path) -> None:
    with browser.new_context(viewport=WIDE) as context:
        page = context.new_page()
        page.goto(address)
        (tmp_path / "broken.png").write_bytes(b"no image")
        page.set_input_files("#image", tmp_path / "broken.png")
        page.wait_for_selector("[role=alert]")
        assert "Not an image that can be read" in page.locator("[role=alert]").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_screens_have_no_overflow_and_dark_ones_are_dark(
    browser: Any, address: str, scheme: str
) -> None:
    with browser.new_context(viewport=NARROW, color_scheme=scheme) as context:
        page = context.new_page()
        for path in ("/", f"/?query={ASK}", "/neighbors/3", f"/documents/3?query={ASK}", "/none"):
            page.goto(address + path)
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= NARROW["width"], path
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 24, 29)")


def test_without_scripts_forms_and_links_work(
    browser: Any, address: str, demo: Demo, tmp_path: Path
) -> None:
    Image.fromarray(demo.collection.image(4)).save(tmp_path / "4.png")
    with browser.new_context(viewport=WIDE, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(address)
        page.fill("#query", ASK)
        page.keyboard.press("Enter")
        page.wait_for_selector(".way")
        assert page.locator(".way").count() == 3
        page.set_input_files("#image", tmp_path / "4.png")
        page.get_by_role("button", name="Search by this image").click()
        page.wait_for_selector("text=Found for this image")
        page.locator(".way .document").first.click()
        page.wait_for_url("**/neighbors/4")
