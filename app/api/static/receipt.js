// Renders a decision receipt: the answer, how it was decided, what it cost, and the passages.
import { costCard } from "./cost.js";
import { actionName, colourOf, drawAll, el, figure, passagesOf, percent, say } from "./draw.js";
import { send } from "./gateway.js";
import { FEW, MANY, confidenceGauge, thresholdGauge } from "./gauges.js";
import { contains, highlighted } from "./highlight.js";
import { ladderCard } from "./ladder.js";

const WHY = {
  confident: "This answer is likely enough to be right: reading more is not worth its price.",
  borderline: "The model’s own answer is not likely enough to be right, so it read {passages}.",
  uncertain: "The model’s own answer is unlikely to be right, so it read {passages}.",
  retrieval_required: "The request or a rule of the operator requires passages.",
  retrieval_forbidden: "The request forbids passages, so this is the model’s own answer.",
  no_signal: "Evidence for a probability is missing, so it read {passages} to be safe.",
  not_calibrated: "No calibrator matches this system, so every question reads {passages}.",
  not_certified: "The calibrator has no certificate for this policy, so its fallback is used for every question.",
  retrieval_failed: "Passages were needed, but the search failed.",
  no_passages: "Passages were needed, but none were found.",
  bypassed: "Gating does not pay at the moment, so the question was not probed.",
  low_confidence: "There is an answer, but its confidence is too low to give it.",
  degraded: "Reading more passages failed, so this is the last available answer.",
  out_of_scope: "The question is unlike those that the calibrator covers, so no probability applies to it.",
  explored: "The number of passages was chosen at random, to collect data for the next calibrator.",
};

const CLIMBED = "Everything was bought, and this is the answer that is most likely to be right.";

function why(receipt) {
  const { reason, thresholds } = receipt.decision;
  // The ladder has no thresholds on the model's own answer.
  if (reason === "uncertain" && thresholds.t !== null) return CLIMBED;
  return WHY[reason].replace("{passages}", passagesRead(receipt));
}

/** What a screen reader says when the answer arrives. */
export function spokenReceipt(receipt) {
  const answer = receipt.answer === null ? "I don’t know." : `Answer: ${receipt.answer}`;
  return `${answer} ${actionName(receipt.action)}. ${why(receipt)}`;
}

// With `style: full`, everything about the decision is about the short answer.
const shortAnswer = (receipt) => receipt.decision.short_answer?.text ?? receipt.answer;
const confidenceOf = (receipt) => receipt.decision.short_answer?.confidence ?? receipt.confidence;

/** Show what was written so far, before the receipt is there. */
export function renderWriting(place, question, text) {
  place.replaceChildren(
    el(
      "section",
      { class: "card answer", "aria-label": "Answer" },
      el("p", { class: "asked" }, question),
      el("p", { class: "written" }, text),
    ),
  );
}

/** Show one receipt; the cost of the alternative is added later. */
export function renderReceipt(place, question, receipt) {
  place.replaceChildren(
    answerCard(question, receipt),
    ladderCard(receipt),
    el("div", { class: "pair" }, decisionCard(receipt), costCard(receipt, null)),
    ...passagesCard(question, receipt),
    el(
      "details",
      { class: "card" },
      el("summary", {}, "The whole receipt, as JSON"),
      el("pre", { tabindex: "0" }, JSON.stringify(receipt, null, 2)),
    ),
  );
  drawAll(place);
}

function answerCard(question, receipt) {
  const withheld = receipt.answer === null;
  const { calibrator } = receipt.decision;
  const full = receipt.style === "full";
  return el(
    "section",
    { class: `card answer appear ${colourOf(receipt.action)}`, "aria-label": "Answer" },
    el("p", { class: "asked" }, question),
    el("p", { class: "given", id: "given" }, withheld ? "I don’t know." : shortAnswer(receipt) || "(an empty answer)"),
    ...writtenOut(receipt),
    el("p", {}, why(receipt)),
    el(
      "div",
      { class: "tags" },
      el(
        "span",
        { class: `badge ${colourOf(receipt.action)}`, id: "action" },
        actionName(receipt.action),
      ),
      receipt.truncated && !withheld ? el("span", { class: "tag" }, "cut off at the limit of tokens") : null,
      confidenceOf(receipt) === null
        ? null
        : el("span", { class: "tag" }, `${percent(confidenceOf(receipt))} sure${full ? " of the short answer" : ""}`),
      el("span", { class: calibrator.certified ? "tag good" : "tag" }, calibratorWords(calibrator)),
    ),
    withheld ? null : judging(receipt.id),
  );
}

const MARKS = {
  supported: "a passage holds its words",
  uncertain: "no passage holds its words, and the model was unsure of them",
  unsupported: "no passage holds its words",
};

/** A full answer with its sentences marked, by a line under each and not by colour alone, and what the lines mean. */
function writtenOut({ answer, sentences }) {
  if (sentences.length === 0) return [];
  let done = 0;
  const text = sentences.flatMap((one) => {
    const at = answer.indexOf(one.text, done);
    const between = answer.slice(done, at);
    done = at + one.text.length;
    return [between, sentence(one)];
  });
  const counts = Object.keys(MARKS).map((mark) => [mark, sentences.filter((one) => one.mark === mark).length]);
  return [
    el("p", { class: "written", id: "written" }, text),
    el(
      "ul",
      { class: "marks small" },
      counts
        .filter(([, count]) => count > 0)
        .map(([mark, count]) => el("li", {}, el("span", { class: `sentence ${mark}` }, `${count} ${mark}`), `: ${MARKS[mark]}`)),
    ),
  ];
}

function sentence({ text, mark, support, logprob }) {
  const facts = [];
  if (support !== null) facts.push(`${percent(support)} of its words are in one passage`);
  if (logprob !== null) facts.push(`mean token probability ${percent(Math.exp(logprob))}`);
  return el(
    "span",
    { class: `sentence ${mark}`, title: facts.join("; ") },
    text
      .split(/(\[[\d, ]+\])/)
      .map((part, place) => (place % 2 ? part.split(/(\d+)/).map((n, at) => (at % 2 ? citation(n) : n)) : part))
      .flat(),
    mark === "supported" ? null : el("span", { class: "visually-hidden" }, ` (${mark})`),
  );
}

const citation = (number) => el("a", { href: `#passage-${number}`, "aria-label": `Passage ${number}` }, number);

/** Two buttons for feedback, which the next refit can use. */
function judging(id) {
  const said = el("span", { role: "status" });
  const button = (text, correct) => {
    const node = el("button", { type: "button", class: "chip" }, text);
    node.addEventListener("click", async () => say(said, await judge(id, correct)));
    return node;
  };
  return el("div", { class: "judge" }, "Is it right?", button("Yes", true), button("No", false), said);
}

async function judge(id, correct) {
  try {
    const reply = await send("feedback", { body: { id, correct } });
    return reply.ok ? "Saved, thank you." : `Not saved: ${(await reply.json()).error.message}`;
  } catch (error) {
    return `Not saved: ${error.message}`;
  }
}

const passagesRead = (receipt) =>
  receipt.citations.length === 0 ? "nothing" : passagesOf(`k${receipt.citations.length}`);

function calibratorWords(calibrator) {
  if (!calibrator.version) return "no calibrator";
  return calibrator.certified ? `certified by ${calibrator.version}` : `not certified · ${calibrator.version}`;
}

function decisionCard(receipt) {
  const { p_closed_book: p, thresholds, calibrator } = receipt.decision;
  return el(
    "section",
    { class: "card", "aria-label": "Why" },
    el("h2", {}, "How likely is it right?"),
    el("h3", {}, "The model’s own answer"),
    ...(p === null
      ? [el("p", { class: "small" }, noProbability(receipt))]
      : [
          figure((width) => thresholdGauge(width, p, thresholds)),
          el("p", { class: "small muted" }, thresholdWords(p, thresholds, receipt.decision.reason)),
        ]),
    el(
      "h3",
      {},
      receipt.k === 0
        ? receipt.usage.probe === null
          ? "No answer"
          : `The answer ${receipt.abstained ? "withheld" : "given"}: the model’s own`
        : `The answer ${receipt.abstained ? "withheld" : "given"}, after reading ${passagesRead(receipt)}`,
    ),
    ...(confidenceOf(receipt) === null
      ? [el("p", { class: "small" }, unknownWords(receipt))]
      : [
          figure((width) =>
            confidenceGauge(width, confidenceOf(receipt), thresholds.tau_abstain, colourOf(receipt.action)),
          ),
          el("p", { class: "small muted" }, abstentionWords(receipt)),
        ]),
    el(
      "dl",
      { class: "facts small" },
      ...fact("Policy", receipt.decision.policy),
      ...fact("Calibrator", calibrator.version ?? "none that matches"),
      ...fact("Certified", calibrator.certified ? "yes: exactly the certified policy decided" : "no"),
    ),
    el(
      "details",
      { class: "evidence" },
      el("summary", {}, "All evidence"),
      el(
        "dl",
        { class: "facts small" },
        ...Object.entries(receipt.decision.evidence).flatMap(([name, value]) => fact(name, value.toFixed(3))),
      ),
    ),
  );
}

const fact = (name, value) => [el("dt", {}, name), el("dd", {}, value)];

function unknownWords({ decision }) {
  if (!decision.calibrator.version) return "Unknown: no calibrator matches this system.";
  return decision.scope.in_scope ? "Unknown: evidence for it is missing." : "Unknown: the question is out of scope.";
}

function noProbability(receipt) {
  if (receipt.usage.probe === null) return "The model was not asked without passages.";
  return "Unknown: no probability was needed, or evidence for it is missing.";
}

const reads = (k) => `${passagesOf(`k${k}`)} ${k === 1 ? "is" : "are"} read`;

const BY_THRESHOLDS = new Set(["confident", "borderline", "uncertain", "low_confidence"]);

function thresholdWords(p, { tau0, tau1 }, reason) {
  if (tau0 === null) return "No thresholds apply to it: each step above weighs it against its alternatives.";
  if (reason === "retrieval_required") return "Passages are required, so τ1 alone decided how many.";
  if (!BY_THRESHOLDS.has(reason)) return "The thresholds did not decide this question.";
  if (p >= tau0) return `${percent(p, 1)} reaches ${tau1 === tau0 ? "τ" : "τ0"}: no passages are needed.`;
  if (p >= tau1) return `${percent(p, 1)} is ${tau1 > 0 ? "between τ1 and τ0" : "below τ0"}: ${reads(FEW)}.`;
  return `${percent(p, 1)} is below ${tau1 === tau0 ? "τ" : "τ1"}: ${reads(MANY)}.`;
}

function abstentionWords(receipt) {
  const tau = receipt.decision.thresholds.tau_abstain;
  if (tau === null) return "There is no abstention threshold, so no answer is withheld for low confidence.";
  if (receipt.answer === null) return `Below ${percent(tau, 1)} an answer is withheld.`;
  return confidenceOf(receipt) < tau
    ? "The request does not allow withholding."
    : `At or above ${percent(tau, 1)}, so the answer is given.`;
}

function passagesCard(question, receipt) {
  if (receipt.citations.length === 0) return [];
  const holding = receipt.citations.map((passage) => contains(passage.text, shortAnswer(receipt), question));
  const intro =
    receipt.answer === null
      ? "They were read, but the answer is withheld."
      : holding.some(Boolean)
        ? "The answer is marked in the passages that contain it."
        : "No passage contains the answer word for word.";
  return [
    el(
      "section",
      { class: "card", "aria-label": "Passages read" },
      el(
        "h2",
        {},
        receipt.citations.length === 1 ? "The passage it read" : `The ${receipt.citations.length} passages it read`,
      ),
      el("p", { class: "small muted" }, intro),
      el(
        "ol",
        { class: "passages" },
        receipt.citations.map((passage, place) =>
          el(
            "li",
            { class: holding[place] ? "passage holds" : "passage", id: `passage-${passage.index}`, tabindex: "-1" },
            el(
              "header",
              {},
              el("b", {}, `[${passage.index}] ${passage.title || passage.id}`),
              holding[place] ? el("span", { class: "holds-word" }, "contains the answer") : null,
              el("span", { class: "score" }, `similarity ${passage.score.toFixed(2)}`),
            ),
            el("p", {}, highlighted(passage.text, shortAnswer(receipt), question)),
          ),
        ),
      ),
    ),
  ];
}
