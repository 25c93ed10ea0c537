"""A real Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

PATIENCE_MS = 90_000
"""How long what is to come into the page may take: Playwright's own five seconds are short for a busy machine."""
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The machine's Chromium; where there is none the test is skipped, which fails a run with CI=true."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        # Chromium's own sandbox needs rights that a container's root lacks. Only our page is loaded.
        expect.set_options(timeout=PATIENCE_MS)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page of 1,440 pixels that fails the test at an error of a script, or where the policy refuses something."""
    context = chromium.new_context(viewport={"width": 1_440, "height": 1_000})
    context.set_default_timeout(PATIENCE_MS)
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    yield opened
    context.close()
    assert [text for text in wrong if "ERR_CONNECTION" not in text and "Failed to fetch" not in text] == []
