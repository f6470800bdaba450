// The question page: sends one question, and shows the receipt or an error.
import { renderCosts } from "./cost.js";
import { el, plural, say } from "./draw.js";
import { FEW, MANY } from "./gauges.js";
import { send } from "./gateway.js";
import { againButton, renderError, renderProblem } from "./problem.js";
import { renderReceipt, spokenReceipt } from "./receipt.js";

// Examples for the demo collection: one that the model knows, one that needs a passage, and one that no passage answers.
const EXAMPLES = [
  "Which U.S. state is the city of Raleigh in?",
  "What is the element berkelium named after?",
  "What is the internet country domain of Cyprus?",
];

const form = document.getElementById("ask");
const question = form.elements.question;
const button = form.querySelector("button[type=submit]");
const problem = document.getElementById("problem");
const receipt = document.getElementById("receipt");
const spoken = document.getElementById("spoken");
let asking = null;

const examples = document.getElementById("examples");
examples.hidden = document.body.dataset.collection !== "demo";
examples.append(
  ...EXAMPLES.map((text) => {
    const chip = el("button", { type: "button", class: "chip" }, text);
    chip.addEventListener("click", () => {
      question.value = text;
      grow();
      ask();
    });
    return chip;
  }),
);

const most = plural(MANY, "passage", "passages");
const POLICIES = {
  ladder: "step by step, while it pays",
  graded: FEW < MANY ? `0, ${FEW} or ${most}` : `0 or ${most}`,
  binary: `0 or ${most}`,
  always: most,
};
for (const [policy, reads] of Object.entries(POLICIES))
  form.elements.policy.querySelector(`[value=${policy}]`).append(`: ${reads}`);

form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
question.addEventListener("input", grow);
question.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    ask();
  }
});

function grow() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight + 2}px`;
}

async function ask() {
  if (!question.value.trim()) {
    renderProblem(problem, "Type a question first.");
    question.focus();
    return;
  }
  asking?.abort();
  const mine = new AbortController();
  asking = mine;
  begin();
  try {
    const asked = request();
    const reply = await send("answer", { body: asked, signal: mine.signal });
    const said = await reply.json();
    if (reply.ok) show(asked.question, said, mine.signal);
    else fail({ status: reply.status, message: said.error?.message, retryAfter: reply.headers.get("retry-after") });
  } catch (error) {
    // A newer question replaced this one.
    if (error.name === "AbortError") return;
    receipt.replaceChildren();
    const why = `The gateway cannot be reached, or its reply is not JSON (${error.message}).`;
    renderProblem(problem, why, againButton(ask));
  } finally {
    if (asking === mine) end();
  }
}

function request() {
  const body = {
    question: question.value.trim(),
    retrieval: form.elements.retrieval.value,
    abstain: form.elements.abstain.checked,
  };
  if (form.elements.policy.value) body.policy = form.elements.policy.value;
  return body;
}

function fail(error) {
  receipt.replaceChildren();
  renderError(problem, error, ask);
}

function show(asked, answered, signal) {
  renderReceipt(receipt, asked, answered);
  say(spoken, spokenReceipt(answered));
  showCosts(answered, signal);
}

const HIDDEN = "The cost without the gate is shown to keys with scope operate.";
const UNKNOWN = "The cost without the gate could not be loaded";
const sayOtherwise = (text) => say(document.getElementById("otherwise"), text);

async function showCosts(answered, signal) {
  try {
    const costs = await send("breakeven", { signal });
    if (costs.ok) renderCosts(receipt, answered, await costs.json());
    else sayOtherwise(costs.status === 401 || costs.status === 403 ? HIDDEN : `${UNKNOWN} (${costs.status}).`);
  } catch (error) {
    // The receipt is complete without it; a newer question loads its own.
    if (error.name !== "AbortError") sayOtherwise(`${UNKNOWN} (${error.message}).`);
  }
}

function begin() {
  problem.hidden = true;
  button.setAttribute("aria-disabled", "true");
  say(button, "Asking…");
  receipt.setAttribute("aria-busy", "true");
  if (!receipt.hasChildNodes())
    receipt.append(el("p", { class: "waiting" }, "Searching, and asking the model…"));
}

function end() {
  button.removeAttribute("aria-disabled");
  say(button, "Ask");
  receipt.removeAttribute("aria-busy");
  receipt.querySelector(".waiting")?.remove();
}
