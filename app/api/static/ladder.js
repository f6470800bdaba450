// Draws a decision as a ladder: a rung for each step, with what was weighed, what was chosen, and why.
import { el, figure, passagesOf, picture, svg } from "./draw.js";

const ROW = 36;
const KS = document.body.dataset.ks.split(",");

/** The colour and the name of what an action such as `read 1` buys or gives. */
function rungOf(action) {
  const [verb, k] = action.split(" ");
  if (verb === "search") return { kind: "search", name: "Search" };
  if (k === undefined) return { kind: "abstain", name: "No answer" };
  const kind = k === "0" ? "k0" : k === KS[1] ? "k1" : "k5";
  return { kind, name: verb === "stop" ? `Answer k = ${k}` : `k = ${k}` };
}

function optionName(action) {
  const [verb, k] = action.split(" ");
  if (verb === "search") return "Search for passages";
  if (verb === "read") return k === "0" ? "Ask without passages" : `Read ${passagesOf(`k${k}`)}`;
  return k === "0" ? "Give the closed-book answer" : `Give the answer from ${passagesOf(`k${k}`)}`;
}

/** A bar from 0 to 1 for each option. The hatched end of a bar is its price. */
function optionBars(width, { options, action }) {
  const x = (share) => Math.min(Math.max(share, 0), 1) * width;
  const drawn = options.flatMap((option, place) => {
    const y = place * ROW;
    const chosen = option.action === action;
    const net = Math.max(option.value - option.price, 0);
    const figures = option.price > 0 ? `${option.value.toFixed(2)} − ${option.price.toFixed(2)}` : option.value.toFixed(2);
    const strong = chosen ? "strong" : "";
    return [
      svg("text", { x: 0, y: y + 12, class: strong }, `${chosen ? "✓ " : ""}${optionName(option.action)}`),
      svg("text", { x: width, y: y + 12, "text-anchor": "end", class: strong }, figures),
      svg("rect", { x: 0, y: y + 18, width, height: 9, rx: 4, class: "faint" }),
      svg("rect", { x: 0, y: y + 18, width: x(option.value), height: 9, rx: 4, class: "price" }),
      svg("rect", {
        x: 0,
        y: y + 18,
        width: x(net),
        height: 9,
        rx: 4,
        class: chosen ? rungOf(option.action).kind : "unchosen",
      }),
    ];
  });
  const said = options.map((o) => `${optionName(o.action)} ${o.value.toFixed(2)} at a price of ${o.price.toFixed(2)}`);
  return picture(width, options.length * ROW - 6, `${said.join(", ")}. Chosen: ${optionName(action)}.`, ...drawn);
}

function rung(step) {
  const { kind, name } = rungOf(step.action);
  return el(
    "li",
    { class: `rung ${kind}` },
    el("h3", {}, name),
    step.options.length > 0 ? figure((width) => optionBars(width, step)) : null,
    el("p", { class: "small" }, step.sentence),
  );
}

/** The steps that were taken, then what was not bought. */
export function ladderCard({ decision }) {
  const bought = new Set(decision.steps.map(({ action }) => action));
  const left = ["search", ...KS.map((k) => `read ${k}`)].filter((action) => !bought.has(action));
  const names = left.map((action) => rungOf(action).name);
  return el(
    "section",
    { class: "card", "aria-label": "Steps" },
    el("h2", {}, "How it was decided"),
    scopeWords(decision.scope),
    decision.steps.some(({ options }) => options.length > 0)
      ? el(
          "p",
          { class: "small muted" },
          "A bar is the expected probability of a right answer; its light end is the price. The largest value minus price is chosen.",
        )
      : null,
    el("ol", { class: "ladder" }, decision.steps.map(rung)),
    names.length > 0 ? el("p", { class: "small muted", id: "unbought" }, `Not bought: ${names.join(", ")}.`) : null,
  );
}

function scopeWords({ in_scope: inside, covers, alarm }) {
  if (inside && covers === null) return null;
  return el(
    "p",
    { class: "scope", id: "scope" },
    el("span", { class: inside ? "tag good" : "tag bad" }, inside ? "In scope" : "Out of scope"),
    el("span", { class: "small" }, [alarm, covers && `The certificate covers: ${covers}`].filter(Boolean).join(" ")),
  );
}
