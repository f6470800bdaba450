"""A real browser: a page that records what must not happen on it, and measurements of the page."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.e2e.processes import REPO, Gateway

SCREENSHOTS = REPO / "build/screenshots"
WIDE, NARROW = 1280, 390
PATIENCE_MS = 60_000
Scheme = Literal["light", "dark"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium; while it is open, this thread cannot run an event loop."""
    with sync_playwright() as playwright:
        # A container has no user namespace for its sandbox; it only opens our own pages.
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Watched:
    """A page, and everything on it that must not happen."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        """Open one of our own pages."""
        self.page.goto(self.url + path)

    def ask(self, question: str, *, policy: str = "", abstain: bool = True, style: str = "short") -> None:
        """Fill in the form as a person would, and wait for the receipt."""
        self.page.get_by_label("Your question").fill(question)
        self.page.get_by_role("radio", name=style).check()
        self.page.get_by_label("Policy").select_option(policy)
        self.page.get_by_label("May say").set_checked(abstain)
        with self.page.expect_response("**/answer") as answered:
            self.page.get_by_role("button", name="Ask", exact=True).click()
        assert answered.value.status == 200, answered.value.text()
        expect(self.page.locator("#given")).to_be_visible()
        expect(self.page.locator(".answer .asked")).to_have_text(question)
        # The page requests what it would have cost otherwise afterwards.
        expect(self.page.locator("#otherwise")).not_to_contain_text("Loading", timeout=PATIENCE_MS)

    def picture(self, name: str) -> None:
        """Save a screenshot."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


def watched(browser: Browser, gateway: Gateway, *, width: int = WIDE, scheme: Scheme = "light") -> Watched:
    """A new page that records each request, error and warning."""
    context = browser.new_context(
        viewport={"width": width, "height": 860}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    one = Watched(page, gateway.url)
    page.on("request", lambda request: one.requests.append(request.url))
    page.on("pageerror", lambda error: one.complaints.append(str(error)))
    page.on("console", lambda said: one.complaints.append(said.text) if said.type in {"error", "warning"} else None)
    return one


def overflow(page: Page) -> int:
    """How many pixels the page is wider than the screen."""
    wider: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return wider


def contrast(page: Page) -> float:
    """The lowest contrast of any text with its background, by the WCAG formula."""
    pairs = page.evaluate(
        """() => ["--muted", "--ink", "--good", "--bad"].flatMap((ink) => ["--bg", "--surface"].map((ground) => {
             const probe = document.createElement("i");
             document.body.append(probe);
             const read = (name) => {
               probe.style.color = `var(${name})`;
               return getComputedStyle(probe).color.match(/\\d+/g).map(Number);
             };
             const both = [read(ink), read(ground)];
             probe.remove();
             return both;
           }))"""
    )

    def luminance(colour: list[int]) -> float:
        parts = [value / 255 for value in colour]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    return min(
        (max(a, b) + 0.05) / (min(a, b) + 0.05)
        for a, b in ((luminance(ink), luminance(ground)) for ink, ground in pairs)
    )
