// The page to ask in: sends one question, and shows the receipt or a kind word about what went wrong.
import { renderCosts } from "./cost.js";
import { el, plural, say } from "./draw.js";
import { FEW, MANY } from "./gauges.js";
import { send } from "./gateway.js";
import { againButton, renderError, renderProblem } from "./problem.js";
import { renderReceipt, spokenReceipt } from "./receipt.js";

// Questions of the demo world, for where that is searched: one that the model knows, one that needs a passage, and one
// that no passage answers.
const EXAMPLES = [
  "What is the capital of Egypt?",
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
    // A newer question took this one's place: it will speak for itself.
    if (error.name === "AbortError") return;
    receipt.replaceChildren();
    const why = `The gateway could not be reached, or did not answer in JSON (${error.message}).`;
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

const HIDDEN = "What it would have cost otherwise is told to those who may operate this gateway.";
const UNKNOWN = "What it would have cost otherwise could not be looked up";
const sayOtherwise = (text) => say(document.getElementById("otherwise"), text);

async function showCosts(answered, signal) {
  try {
    const costs = await send("breakeven", { signal });
    if (costs.ok) renderCosts(receipt, answered, await costs.json());
    else sayOtherwise(costs.status === 401 || costs.status === 403 ? HIDDEN : `${UNKNOWN} (${costs.status}).`);
  } catch (error) {
    // The answer stands without it; a newer question has its own.
    if (error.name !== "AbortError") sayOtherwise(`${UNKNOWN} (${error.message}).`);
  }
}

function begin() {
  problem.hidden = true;
  button.setAttribute("aria-disabled", "true");
  say(button, "Asking…");
  receipt.setAttribute("aria-busy", "true");
  if (!receipt.hasChildNodes())
    receipt.append(el("p", { class: "waiting" }, "Asking the model once without passages…"));
}

function end() {
  button.removeAttribute("aria-disabled");
  say(button, "Ask");
  receipt.removeAttribute("aria-busy");
  receipt.querySelector(".waiting")?.remove();
}
