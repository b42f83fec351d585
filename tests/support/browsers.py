"""A browser of this machine for tests of pages; it is started without any network."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS = (
    "--no-sandbox",  # in containers there is none; what is shown is a page of our own
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_browser() -> str | None:
    """The program named by STATECHANNEL_BROWSER, or one that is installed."""
    named = os.environ.get("STATECHANNEL_BROWSER")
    return named or next((browser for name in NAMES if (browser := shutil.which(name))), None)


def browser_or_skip() -> str:
    """The browser; without one the test is skipped, or fails where STATECHANNEL_REQUIRE_BROWSER=1 says that there is one."""
    browser = find_browser()
    if browser is None:
        why = "no Chromium is installed: `make browser` installs one, or STATECHANNEL_BROWSER names it"
        if os.environ.get("STATECHANNEL_REQUIRE_BROWSER") == "1":
            pytest.fail(why)
        pytest.skip(why)
    return browser


class Shown:
    """A page in a browser that has no network, and what went wrong in it.

    Attributes:
        page: Playwright's.
        requests: Everything that the page asked for, itself not.
        errors: Messages on the console, and exceptions.
    """

    def __init__(self, page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.errors.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: self.errors.append(f"dialog {dialog.message}") or dialog.dismiss())

    def open(self, path) -> "Shown":
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready=yes]", state="attached")
        self.requests.remove(path.as_uri())
        return self

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_text_contents()]

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()


@contextmanager
def running_browser() -> Iterator[object]:
    """Playwright's browser; it opens pages until the end."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where there is a browser

    program = browser_or_skip()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*_ARGUMENTS], timeout=120_000)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def shown(browser, **options) -> Iterator[Shown]:
    """A fresh page of its own profile, offline."""
    context = browser.new_context(offline=True, viewport={"width": 1300, "height": 900}, **options)
    context.set_default_timeout(60_000)
    try:
        yield Shown(context.new_page())
    finally:
        context.close()
