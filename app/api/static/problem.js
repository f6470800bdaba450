// What went wrong, in plain words, and what can be done about it.
import { el } from "./draw.js";
import { useKey } from "./gateway.js";

const KINDLY = {
  401: "This gateway wants a key.",
  403: "The key that was given does not allow this.",
  404: "There is nothing to search in yet.",
  413: "That is longer than this gateway takes.",
  422: "The gateway did not understand that.",
  429: "The gateway has its hands full just now.",
  503: "A part behind the gateway did not answer, and without it no honest answer was left.",
};

/** An error that the gateway answered with; `again` asks the question once more. */
export function renderError(place, { status, message, retryAfter }, again) {
  const wait = retryAfter ? ` Try again in ${retryAfter} s.` : "";
  const parts = [];
  if (message) parts.push(el("p", { class: "small" }, `It said: ${message}`));
  if (status === 401 || status === 403) parts.push(keyForm(again));
  if (status >= 500) {
    const dashboard = el("a", { href: "dashboard" }, "dashboard");
    parts.push(el("p", { class: "small" }, "The ", dashboard, " shows which part is down."));
  }
  if (status === 429 || status >= 500) parts.push(againButton(again));
  renderProblem(place, `${KINDLY[status] ?? `The gateway answered ${status}.`}${wait}`, ...parts);
}

/** Anything else that keeps a question from being answered. */
export function renderProblem(place, text, ...parts) {
  place.replaceChildren(el("b", {}, text), ...parts);
  place.hidden = false;
}

/** A button that asks the same once more. */
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
    el("label", { for: "key" }, "Key, kept until this tab is closed"),
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
