// The question page: sends one question, and shows the receipt or an error.
import { renderCosts } from "./cost.js";
import { el, plural, say } from "./draw.js";
import { FEW, MANY } from "./gauges.js";
import { eventsOf, send } from "./gateway.js";
import { againButton, renderError, renderProblem } from "./problem.js";
import { renderReceipt, renderWriting, spokenReceipt } from "./receipt.js";

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
    if (reply.ok) await follow(asked.question, reply, mine.signal);
    else fail(reply.status, await reply.json(), reply.headers.get("retry-after"));
  } catch (error) {
    // A newer question replaced this one.
    if (error.name === "AbortError") return;
    receipt.replaceChildren();
    const why = `The gateway cannot be reached, or its reply cannot be read (${error.message}).`;
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
    style: form.elements.style.value,
    stream: true,
  };
  if (form.elements.policy.value) body.policy = form.elements.policy.value;
  return body;
}

/** Show each step, then the text while it is written, then the receipt. */
async function follow(asked, reply, signal) {
  let text = "";
  for await (const [event, data] of eventsOf(reply)) {
    if (event === "step") wait(data.sentence);
    else if (event === "token") {
      text += data.text;
      const first = text === data.text;
      renderWriting(receipt, asked, text);
      if (first) reveal();
    } else if (event === "final") {
      const unseen = text === "";
      renderReceipt(receipt, asked, data);
      if (unseen) reveal();
      say(spoken, spokenReceipt(data));
      showCosts(data, signal);
      return;
    } else if (event === "error") {
      fail(503, data, null);
      return;
    }
  }
  throw new Error("it ended early");
}

function fail(status, { error }, retryAfter) {
  receipt.replaceChildren();
  renderError(problem, { status, message: error?.message, retryAfter }, ask);
}

/** On a phone the answer is below the form, and the keyboard may cover it. */
function reveal() {
  receipt.removeAttribute("aria-busy");
  if (!matchMedia("(max-width: 40rem)").matches) return;
  question.blur();
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  receipt.scrollIntoView({ block: "start", behavior: still ? "auto" : "smooth" });
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
  wait("Deciding what to do first…");
}

/** What is being done, where the answer will be. */
function wait(doing) {
  const shown = receipt.querySelector(".waiting") ?? el("p", { class: "waiting" });
  say(shown, doing);
  receipt.prepend(shown);
}

function end() {
  button.removeAttribute("aria-disabled");
  say(button, "Ask");
  receipt.removeAttribute("aria-busy");
  receipt.querySelector(".waiting")?.remove();
}
