// A decision receipt as a picture: the answer, why it was given in this way, what it cost, what was read.
import { costCard } from "./cost.js";
import { actionName, colourOf, drawAll, el, figure, passagesOf, percent, say } from "./draw.js";
import { send } from "./gateway.js";
import { FEW, MANY, confidenceGauge, thresholdGauge } from "./gauges.js";
import { contains, highlighted } from "./highlight.js";

const WHY = {
  confident: "The model knows this by itself: its own answer is likely enough to be right, so nothing was fetched.",
  borderline: "The model is not sure enough to answer alone, so it read {passages}.",
  uncertain: "The model is unsure, so it read {passages}.",
  retrieval_required: "The request, or a rule of the operator’s, insisted on passages.",
  retrieval_forbidden: "The request allowed no passages, so this is the model’s own answer.",
  no_signal: "The model gave no usable log-probabilities, so it read {passages} to be safe.",
  not_calibrated: "No calibrator matches what runs here, so it read {passages}, as for every question.",
  not_certified: "The calibrator carries no certificate for this policy, so its fallback serves every question.",
  retrieval_failed: "Passages were wanted, but the search failed.",
  no_passages: "Passages were wanted, but none was found.",
  bypassed: "Gating does not pay at the moment, so the question was not probed.",
  low_confidence: "An answer was found, but it is too likely to be wrong to give.",
  degraded: "Reading more passages failed, so this is the answer that was there already.",
  explored: "The number of passages was drawn at random, to keep the gateway’s figures honest.",
};

const why = (receipt) => WHY[receipt.decision.reason].replace("{passages}", passagesRead(receipt));

/** What a screen reader says when the answer comes in. */
export function spokenReceipt(receipt) {
  const answer = receipt.answer === null ? "I don’t know." : `Answer: ${receipt.answer}`;
  return `${answer} ${actionName(receipt.action)}. ${why(receipt)}`;
}

/** Show one receipt, without what it would have cost otherwise. */
export function renderReceipt(place, question, receipt) {
  place.replaceChildren(
    answerCard(question, receipt),
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
  return el(
    "section",
    { class: `card answer appear ${colourOf(receipt.action)}`, "aria-label": "Answer" },
    el("p", { class: "asked" }, question),
    el("p", { class: "given", id: "given" }, withheld ? "I don’t know." : receipt.answer || "(an empty answer)"),
    el("p", {}, why(receipt)),
    el(
      "div",
      { class: "tags" },
      el(
        "span",
        { class: `badge ${colourOf(receipt.action)}`, id: "action" },
        withheld ? `Withheld after reading ${passagesRead(receipt)}` : actionName(receipt.action),
      ),
      receipt.confidence === null ? null : el("span", { class: "tag" }, `${percent(receipt.confidence)} sure`),
      el("span", { class: calibrator.certified ? "tag good" : "tag" }, calibratorWords(calibrator)),
    ),
    withheld ? null : judging(receipt.id),
  );
}

/** Two buttons for whoever knows better; their verdicts are what the calibrator is refitted from. */
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
    return reply.ok ? "Noted, thank you." : `Not noted: ${(await reply.json()).error.message}`;
  } catch (error) {
    return `Not noted: ${error.message}`;
  }
}

const passagesRead = (receipt) =>
  receipt.usage.passages === 0 ? "nothing" : passagesOf(`k${receipt.usage.passages}`);

function calibratorWords(calibrator) {
  if (!calibrator.version) return "no calibrator";
  return calibrator.certified ? `certified by ${calibrator.version}` : `not certified · ${calibrator.version}`;
}

function decisionCard(receipt) {
  const { p_closed_book: p, thresholds, calibrator } = receipt.decision;
  return el(
    "section",
    { class: "card", "aria-label": "Why" },
    el("h2", {}, "How sure was it?"),
    el("h3", {}, "The model alone, before fetching"),
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
        ? "The answer given: the model’s own"
        : `The answer given, after reading ${passagesRead(receipt)}`,
    ),
    ...(receipt.confidence === null
      ? [el("p", { class: "small" }, "Nobody can say: no calibrator was fitted for this.")]
      : [
          figure((width) => confidenceGauge(width, receipt.confidence, thresholds.tau_abstain, colourOf(receipt.action))),
          el("p", { class: "small muted" }, abstentionWords(receipt)),
        ]),
    el(
      "dl",
      { class: "facts small" },
      ...fact("Policy", receipt.decision.policy),
      ...fact("Calibrator", calibrator.version ?? "none that matches"),
      ...fact("Certified", calibrator.certified ? "yes: exactly its certified policy ran" : "no"),
      ...Object.entries(receipt.decision.signals)
        .filter(([name]) => name in SIGNALS)
        .flatMap(([name, value]) => fact(SIGNALS[name], value.toFixed(3))),
    ),
  );
}

const SIGNALS = { seq_logprob: "Mean log-probability", neg_entropy: "Negative entropy", margin: "Margin" };
const fact = (name, value) => [el("dt", {}, name), el("dd", {}, value)];

function noProbability(receipt) {
  if (receipt.usage.probe === null) return "It was not asked: no probability could have changed what was read.";
  return "It was asked, but no calibrator turns its log-probabilities into a probability here.";
}

const reads = (k) => `${passagesOf(`k${k}`)} ${k === 1 ? "is" : "are"} read`;

const BY_THRESHOLDS = new Set(["confident", "borderline", "uncertain", "low_confidence"]);

function thresholdWords(p, { tau0, tau1 }, reason) {
  if (tau0 === null) return "No thresholds were in force for this.";
  if (reason === "retrieval_required") return "Passages were asked for, so τ1 alone chose how many.";
  if (!BY_THRESHOLDS.has(reason)) return "The thresholds did not decide this one.";
  if (p >= tau0) return `${percent(p, 1)} reaches ${tau1 === tau0 ? "τ" : "τ0"}: it may answer by itself.`;
  if (p >= tau1) return `${percent(p, 1)} is ${tau1 > 0 ? "between τ1 and τ0" : "below τ0"}: ${reads(FEW)}.`;
  return `${percent(p, 1)} is below ${tau1 === tau0 ? "τ" : "τ1"}: ${reads(MANY)}.`;
}

function abstentionWords(receipt) {
  const tau = receipt.decision.thresholds.tau_abstain;
  if (tau === null) return "No abstention threshold is in force here, so nothing is withheld for being unsure.";
  if (receipt.answer === null) return `Below ${percent(tau, 1)} an answer is withheld rather than guessed.`;
  return receipt.confidence < tau
    ? "The request wanted an answer in any case."
    : `At or above ${percent(tau, 1)}, so it may be given.`;
}

function passagesCard(question, receipt) {
  if (receipt.citations.length === 0) return [];
  const holding = receipt.citations.map((passage) => contains(passage.text, receipt.answer, question));
  const intro =
    receipt.answer === null
      ? "Read, but no answer came out of it that is sure enough."
      : holding.some(Boolean)
        ? "The answer is marked where a passage holds it."
        : "None of them holds the answer word for word.";
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
            { class: holding[place] ? "passage holds" : "passage" },
            el(
              "header",
              {},
              el("b", {}, `[${passage.index}] ${passage.title || passage.id}`),
              holding[place] ? el("span", { class: "holds-word" }, "holds the answer") : null,
              el("span", { class: "score" }, `similarity ${passage.score.toFixed(2)}`),
            ),
            el("p", {}, highlighted(passage.text, receipt.answer, question)),
          ),
        ),
      ),
    ),
  ];
}
