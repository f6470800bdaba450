// Shows what went wrong and what to do about it.
import { el } from "./draw.js";
import { useKey } from "./gateway.js";

const MEANINGS = {
  401: "This gateway needs a key.",
  403: "The key does not allow this.",
  404: "There is no collection or no passage to search.",
  413: "The question is too long.",
  422: "The request is not valid.",
  429: "The gateway is busy.",
  503: "An upstream did not answer, and no answer is available without it.",
};

/** Show an error response; `again` asks the question again. */
export function renderError(place, { status, message, retryAfter }, again) {
  const wait = retryAfter ? ` Try again in ${retryAfter} s.` : "";
  const parts = [];
  if (message) parts.push(el("p", { class: "small" }, `Details: ${message}`));
  if (status === 401 || status === 403) parts.push(keyForm(again));
  if (status >= 500) {
    const dashboard = el("a", { href: "dashboard" }, "dashboard");
    parts.push(el("p", { class: "small" }, "The ", dashboard, " shows which upstream is down."));
  }
  if (status === 429 || status >= 500) parts.push(againButton(again));
  renderProblem(place, `${MEANINGS[status] ?? `The gateway answered ${status}.`}${wait}`, ...parts);
}

/** Show any other problem. */
export function renderProblem(place, text, ...parts) {
  place.replaceChildren(el("b", {}, text), ...parts);
  place.hidden = false;
}

/** A button that asks the same question again. */
export function againButton(again) {
  const button = el("button", { type: "button", class: "again" }, "Ask again");
  button.addEventListener("click", again);
  return button;
}

function keyForm(again) {
  const field = el("input", { type: "password", id: "key", autocomplete: "off", placeholder: "fw_…", required: true });
  const form = el(
    "form",
    { class: "key" },
    el("label", { for: "key" }, "Key, stored until this tab is closed"),
    field,
    el("button", { class: "again" }, "Use it"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    useKey(field.value);
    again();
  });
  return form;
}
