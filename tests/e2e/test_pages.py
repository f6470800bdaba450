"""Both pages in a real browser on a real gateway: ask, see the reason, and watch the dashboard update."""

import json
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Route, expect

from tests.e2e.browser import NARROW, PATIENCE_MS, WIDE, Scheme, Watched, chromium, contrast, overflow, watched
from tests.e2e.processes import REPO, Gateway, gateway

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

KNOWN = "Which U.S. state is the city of Raleigh in?"
OBSCURE = "What is the element berkelium named after?"
UNANSWERABLE = "What is the internet country domain of Cyprus?"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The embedded default with the demo world, exactly as `make serve` starts it."""
    with gateway(tmp_path_factory.mktemp("demo"), seed=str(REPO / "demo/passages.jsonl")) as one:
        # One answer, so no test of the dashboard depends on earlier tests.
        assert one.ask(KNOWN).status_code == 200
        yield one


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all pages."""
    with chromium() as one:
        yield one


@pytest.fixture
def screen(browser: Browser, demo: Gateway) -> Iterator[Watched]:
    """A wide, light page; it must end without errors and without requests to other hosts."""
    one = watched(browser, demo)
    yield one
    one.page.context.close()
    assert one.complaints == []
    assert one.requests
    assert [url for url in one.requests if not url.startswith((demo.url, "data:"))] == []


def receipt_of(screen: Watched) -> str:
    """The receipt as the page shows it to programmers."""
    return screen.page.locator("details pre").text_content() or ""


def test_known_question_reads_nothing(screen: Watched) -> None:
    """k0: the answer, the reason, the steps, and no passages."""
    screen.open("/")
    screen.ask(KNOWN)
    expect(screen.page.locator("#given")).to_contain_text("North Carolina")
    expect(screen.page.locator("#action")).to_have_text("No passage")
    expect(screen.page.locator(".answer")).to_contain_text("likely enough to be right")
    expect(screen.page.get_by_role("img", name="Chosen: Give the closed-book answer.")).to_be_visible()
    expect(screen.page.locator(".rung").last).to_contain_text("Stop with the closed-book answer")
    expect(screen.page.get_by_role("region", name="Passages read")).to_have_count(0)
    assert '"action": "k0"' in receipt_of(screen)


def test_obscure_question_reads_a_passage_and_marks_the_answer(screen: Watched) -> None:
    """k1: the passage is shown, and the text that supports the answer is marked."""
    screen.open("/")
    screen.page.get_by_role("button", name=OBSCURE).click()
    expect(screen.page.locator("#action")).to_have_text("One passage", timeout=PATIENCE_MS)
    expect(screen.page.locator(".passage.holds mark").first).to_contain_text("Berkeley")
    expect(screen.page.get_by_role("img", name="1 passage read.")).to_be_visible()
    for stage in ("Embed", "Search", "Read"):
        expect(screen.page.locator(".legend")).to_contain_text(stage)


def test_unanswerable_question_is_not_answered(screen: Watched) -> None:
    """Abstention: "I don't know", the reason, and the confidence below its threshold."""
    screen.open("/")
    screen.ask(UNANSWERABLE)
    expect(screen.page.locator("#given")).to_have_text("I don’t know.")
    expect(screen.page.locator("#action")).to_contain_text("Withheld")
    expect(screen.page.get_by_role("img", name="withheld below")).to_be_visible()
    expect(screen.page.get_by_role("status")).to_contain_text("I don’t know.")
    screen.ask(UNANSWERABLE, abstain=False)
    expect(screen.page.locator("#action")).not_to_contain_text("Withheld")


def test_always_reads_five_and_feedback_is_saved(screen: Watched) -> None:
    """k5 on request, without a probe; the user can correct the answer."""
    screen.open("/")
    screen.ask(OBSCURE, policy="always", abstain=False)
    expect(screen.page.locator("#action")).to_have_text("Five passages")
    expect(screen.page.locator(".passage")).to_have_count(5)
    expect(screen.page.get_by_role("region", name="Why")).to_contain_text("was not asked without passages")
    screen.page.get_by_role("button", name="Yes").click()
    expect(screen.page.locator(".judge")).to_contain_text("Saved")


def test_full_answer_shows_what_supports_each_sentence(screen: Watched) -> None:
    """The short answer with its confidence, then the text by its sentences; a citation leads to its passage."""
    screen.open("/")
    screen.ask(OBSCURE, style="full")
    expect(screen.page.locator("#given")).to_contain_text("Berkeley")
    expect(screen.page.locator(".answer")).to_contain_text("sure of the short answer")
    sentences = screen.page.locator("#written .sentence")
    assert sentences.count() >= 1
    assert '"style": "full"' in receipt_of(screen)
    marks = {
        mark: screen.page.locator(f"#written .{mark}").count() for mark in ("supported", "uncertain", "unsupported")
    }
    for mark, count in marks.items():
        expect(screen.page.locator(".marks li", has_text=f"{count} {mark}:")).to_have_count(1 if count else 0)
    assert sum(marks.values()) == sentences.count()
    screen.page.locator("#written a").first.click()
    expect(screen.page.locator(".passage:target")).to_be_in_viewport()


def test_full_answer_is_streamed(browser: Browser, demo: Gateway) -> None:
    """The text is shown while it is written, and an error in the middle replaces it."""
    screen = watched(browser, demo)
    token = 'event: token\ndata: {"text":"It is"}\n\n'
    problem = '{"error": {"type": "upstream_unavailable", "message": "the very words"}}'
    screen.open("/")
    screen.page.evaluate(
        """(token) => {
          const late = new TextEncoder().encode(token);
          const start = (to) => { to.enqueue(late); window.to = to; };
          window.fetch = async () => new Response(new ReadableStream({ start }));
        }""",
        token,
    )
    screen.page.get_by_label("Your question").fill(KNOWN)
    screen.page.get_by_role("button", name="Ask", exact=True).click()
    expect(screen.page.locator(".written")).to_have_text("It is")
    screen.page.evaluate(
        "(rest) => { window.to.enqueue(new TextEncoder().encode(rest)); window.to.close(); }",
        f"event: error\ndata: {problem}\n\n",
    )
    expect(screen.page.get_by_role("alert")).to_contain_text("the very words")
    expect(screen.page.locator(".written")).to_have_count(0)
    screen.page.context.close()


def test_phone_scrolls_to_the_answer(browser: Browser, demo: Gateway) -> None:
    """The form fills a small screen, so the answer would be below it."""
    screen = watched(browser, demo, width=NARROW)
    screen.page.set_viewport_size({"width": NARROW, "height": 664})
    screen.open("/")
    screen.ask(KNOWN)
    expect(screen.page.locator("#given")).to_be_in_viewport()
    expect(screen.page.get_by_label("Your question")).not_to_be_focused()
    screen.page.context.close()
    assert screen.complaints == []


def test_contradictory_options_are_explained(browser: Browser, demo: Gateway) -> None:
    """A 422 is shown with the gateway's own message; the browser's console may name the status."""
    screen = watched(browser, demo)
    screen.open("/")
    screen.page.get_by_label("Your question").fill(KNOWN)
    screen.page.get_by_label("Policy").select_option("always")
    screen.page.get_by_label("Retrieval").select_option("forbidden")
    screen.page.get_by_label("Your question").press("Enter")
    expect(screen.page.get_by_role("alert")).to_contain_text("contradicts")
    expect(screen.page.locator("#given")).to_have_count(0)
    screen.page.context.close()
    assert all("422" in complaint for complaint in screen.complaints)


@pytest.mark.parametrize(
    ("status", "meaning", "offers_again"),
    [(429, "is busy", True), (503, "did not answer", True), (404, "no passage to search", False)],
)
def test_error_is_explained(browser: Browser, demo: Gateway, status: int, meaning: str, offers_again: bool) -> None:
    """The page says what went wrong, the message of the gateway and when to try again, and shows no old receipt."""
    screen = watched(browser, demo)
    problem = {"error": {"type": "some_kind", "message": "the very words", "fields": []}}
    screen.open("/")
    screen.ask(KNOWN)
    screen.page.route(
        "**/answer", lambda route: route.fulfill(status=status, headers={"retry-after": "7"}, json=problem)
    )
    screen.page.get_by_role("button", name="Ask", exact=True).click()
    alert = screen.page.get_by_role("alert")
    expect(alert).to_contain_text(meaning)
    expect(alert).to_contain_text("the very words")
    expect(alert).to_contain_text("Try again in 7 s")
    expect(screen.page.locator("#given")).to_have_count(0)
    expect(screen.page.get_by_role("button", name="Ask again")).to_have_count(int(offers_again))
    screen.page.unroute("**/answer")
    screen.page.get_by_role("button", name="Ask", exact=True).click()
    expect(screen.page.locator("#given")).to_contain_text("North Carolina", timeout=PATIENCE_MS)
    expect(alert).to_be_hidden()
    screen.page.context.close()
    assert all(str(status) in complaint for complaint in screen.complaints)


def test_key_is_requested_and_kept_for_the_tab(browser: Browser, demo: Gateway) -> None:
    """If the gateway needs a key, the page takes one, sends it, and keeps it over a reload."""
    screen = watched(browser, demo)

    def guarded(route: Route) -> None:
        if route.request.headers.get("authorization") == "Bearer fw_id_secret":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": {"type": "unauthorised", "message": "a key is needed"}})

    screen.page.route("**/answer", guarded)
    screen.open("/")
    screen.page.get_by_label("Your question").fill(KNOWN)
    screen.page.get_by_label("Your question").press("Enter")
    expect(screen.page.get_by_role("alert")).to_contain_text("needs a key")
    screen.page.get_by_label("Key").fill("fw_id_secret")
    screen.page.get_by_role("button", name="Use it").click()
    expect(screen.page.locator("#given")).to_contain_text("North Carolina", timeout=PATIENCE_MS)
    screen.page.reload()
    screen.ask(KNOWN)
    screen.page.context.close()
    assert all("401" in complaint for complaint in screen.complaints)


def test_untrusted_text_is_never_markup(screen: Watched, demo: Gateway) -> None:
    """An answer or a passage that looks like HTML is shown as text."""
    markup = "<img src=x onerror=alert(1)><b id=planted>bold</b>"
    receipt = demo.ask(OBSCURE, policy="always", abstain=False).json()
    receipt["answer"] = markup
    receipt["citations"][0] |= {"title": markup, "text": f"Before {markup} after."}
    final = f"event: final\ndata: {json.dumps(receipt)}\n\n"
    screen.page.route("**/answer", lambda route: route.fulfill(body=final, content_type="text/event-stream"))
    screen.open("/")
    screen.ask(markup)
    expect(screen.page.locator("#given")).to_have_text(markup)
    expect(screen.page.locator(".passage").first).to_contain_text(markup)
    expect(screen.page.locator("#planted")).to_have_count(0)


def test_page_works_with_the_keyboard_only(screen: Watched) -> None:
    """The question has the focus at once, Enter asks, and Tab reaches the options."""
    screen.open("/")
    expect(screen.page.get_by_label("Your question")).to_be_focused()
    screen.page.keyboard.type(KNOWN)
    screen.page.keyboard.press("Enter")
    expect(screen.page.locator("#given")).to_be_visible(timeout=PATIENCE_MS)
    for _ in range(8):
        screen.page.keyboard.press("Tab")
        if screen.page.evaluate("document.activeElement.id") == "policy":
            return
    raise AssertionError("Tab does not reach the policy")


def test_dashboard_updates_itself(screen: Watched, demo: Gateway) -> None:
    """New answers appear by themselves, and other windows can be chosen."""
    screen.open("/dashboard")
    answers = screen.page.locator("#tiles dd").first
    expect(answers).to_be_visible(timeout=PATIENCE_MS)
    before = answers.text_content() or ""
    assert demo.ask(KNOWN).status_code == 200
    expect(answers).not_to_have_text(before, timeout=PATIENCE_MS)
    for part in ("reader", "embedder", "vectors"):
        expect(screen.page.get_by_role("list", name="Parts")).to_contain_text(part)
    expect(screen.page.locator("#timeline rect.k0").first).to_be_attached()
    expect(screen.page.locator("#histogram rect.k0").first).to_be_attached()
    with screen.page.expect_response("**/dashboard/data?window=3600") as asked:
        screen.page.get_by_text("1 hour").click()
    assert asked.value.json()["timeline"]["bucket_seconds"] == 60


def test_dashboard_without_traffic_says_what_to_do(screen: Watched, demo: Gateway) -> None:
    """It links to the first question instead of showing empty charts, and still shows the running system."""
    quiet = httpx.get(f"{demo.url}/dashboard/data").json() | {"answers": 0}
    screen.page.route("**/dashboard/data*", lambda route: route.fulfill(json=quiet))
    screen.open("/dashboard")
    expect(screen.page.get_by_role("heading", name="No questions in this window")).to_be_visible()
    expect(screen.page.locator("#filled")).to_be_hidden()
    expect(screen.page.get_by_role("list", name="Parts")).to_contain_text("reader")
    screen.page.get_by_role("link", name="Ask one").click()
    expect(screen.page.get_by_label("Your question")).to_be_focused()


def test_hidden_dashboard_sends_no_requests(screen: Watched) -> None:
    """While hidden it sends nothing; when shown again it updates at once."""
    screen.page.clock.install()
    screen.open("/dashboard")
    expect(screen.page.locator("#headline")).not_to_have_text("Loading…")
    with screen.page.expect_request("**/dashboard/data*"):
        screen.page.clock.run_for(2_000)
    expect(screen.page.locator("#tiles dd").first).to_be_visible()
    show = """(hidden) => {
        Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    screen.page.evaluate(show, True)
    asked = len(screen.requests)
    screen.page.clock.run_for(600_000)
    assert len(screen.requests) == asked
    with screen.page.expect_request("**/dashboard/data*"):
        screen.page.evaluate(show, False)


def test_dashboard_survives_a_gateway_that_is_down(browser: Browser, demo: Gateway) -> None:
    """The dashboard keeps its last figures, says what is wrong, and continues when the gateway is back."""
    screen = watched(browser, demo)
    screen.page.clock.install()
    screen.open("/dashboard")
    expect(screen.page.locator("#tiles dd").first).to_be_visible()

    def gone(route: Route) -> None:
        route.abort("connectionrefused")

    screen.page.route("**/dashboard/data*", gone)
    screen.page.clock.run_for(2_000)
    expect(screen.page.locator("#trouble")).to_contain_text("cannot be loaded")
    expect(screen.page.locator("#tiles dd").first).to_be_visible()
    screen.page.unroute("**/dashboard/data*")
    screen.page.clock.run_for(5_000)
    expect(screen.page.locator("#trouble")).to_be_hidden()
    screen.page.context.close()
    assert all("ERR_CONNECTION_REFUSED" in complaint for complaint in screen.complaints)


def test_headline_is_the_sentence_of_breakeven(screen: Watched, demo: Gateway) -> None:
    """The page shows the sentence of the API, not its own."""
    screen.open("/dashboard")
    expect(screen.page.locator("#headline")).not_to_have_text("Loading…")
    said = httpx.get(f"{demo.url}/breakeven").json()["sentence"]
    assert (screen.page.locator("#headline").text_content() or "").replace("\u00a0", " ") == said


def test_dashboard_shows_whether_the_gate_is_bypassed(screen: Watched, demo: Gateway) -> None:
    """With the sentence of `/breakeven`."""
    screen.open("/dashboard")
    why = httpx.get(f"{demo.url}/breakeven").json()["bypass"]["reason"]
    expect(screen.page.locator("#bypass")).to_contain_text(why)


def test_api_documentation_loads_nothing_from_other_hosts(screen: Watched) -> None:
    """Swagger UI shows the API from the gateway's own files, and can send a question."""
    screen.open("/docs")
    expect(screen.page.locator(".opblock", has_text="/answer").first).to_be_visible()
    screen.page.locator(".opblock-summary", has_text="/healthz").click()
    expect(screen.page.get_by_role("button", name="Try it out")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW, 375])
def test_no_sideways_scrolling(browser: Browser, demo: Gateway, width: int, scheme: Scheme) -> None:
    """On a desktop and a phone, in light and dark mode: no sideways scrolling, and a screenshot of each."""
    screen = watched(browser, demo, width=width, scheme=scheme)
    for name, question in (("k0", KNOWN), ("k1", OBSCURE), ("abstain", UNANSWERABLE), ("full", OBSCURE)):
        screen.open("/")
        screen.ask(question, style="full" if name == "full" else "short")
        assert overflow(screen.page) <= 0
        screen.picture(f"ask-{name}-{width}-{scheme}")
    screen.open("/dashboard")
    expect(screen.page.locator("#tiles dd").first).to_be_visible()
    expect(screen.page.locator("#timeline svg")).to_be_visible()
    assert overflow(screen.page) <= 0
    assert contrast(screen.page) >= 4.5
    screen.picture(f"dashboard-{width}-{scheme}")
    screen.page.context.close()
    assert screen.complaints == []
