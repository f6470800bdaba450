// The cost of an answer, compared with always reading, from /breakeven.
import { STAGES, STAGE_NAMES, drawAll, duration, el, figure, number, passagesOf, plural } from "./draw.js";
import { compareBars, passageDots } from "./gauges.js";

/** Add the comparison when it has been loaded. */
export function renderCosts(place, receipt, costs) {
  place.querySelector("#cost").replaceWith(costCard(receipt, costs));
  drawAll(place.querySelector("#cost"));
}

/** One card; `costs` is null while they are being loaded. */
export function costCard(receipt, costs) {
  const tokens = (usage) => (usage ? usage.prompt_tokens + usage.completion_tokens : 0);
  const { probe, read, write } = receipt.usage;
  const spent = { ms: receipt.timings_ms.total, tokens: tokens(probe) + tokens(read) + tokens(write) };
  const stages = [...STAGES, "write"].filter((stage) => receipt.timings_ms[stage] !== null);
  const always = alwaysCost(costs);
  const time = [
    {
      label: "This answer",
      parts: stages.map((stage) => ({ kind: stage, value: receipt.timings_ms[stage] })),
      total: duration(spent.ms),
    },
  ];
  const used = [
    {
      label: "This answer",
      parts: [
        { kind: "probe", value: tokens(probe) },
        { kind: "read", value: tokens(read) },
        { kind: "write", value: tokens(write) },
      ],
      total: number(spent.tokens),
    },
  ];
  if (always?.ms)
    time.push({
      label: always.label,
      parts: [
        { kind: "search", value: always.ret },
        { kind: "read", value: always.ob },
      ],
      total: `about ${duration(always.ms)}`,
    });
  if (always?.tokens)
    used.push({
      label: always.label,
      parts: [{ kind: "read", value: always.tokens }],
      total: `about ${number(always.tokens)}`,
    });
  return el(
    "section",
    { class: "card", id: "cost", "aria-label": "What it cost" },
    el("h2", {}, "What it cost"),
    el("h3", {}, "Time"),
    figure((width) => compareBars(width, time, "Time")),
    el(
      "ul",
      { class: "legend" },
      stages.map((stage) =>
        el("li", { class: stage }, STAGE_NAMES[stage], " ", el("b", {}, duration(receipt.timings_ms[stage]))),
      ),
    ),
    el("h3", {}, "Tokens"),
    figure((width) => compareBars(width, used, "Tokens")),
    el("h3", {}, "Searches and passages"),
    figure((width) => passageDots(width, receipt.usage.passages)),
    el("p", { class: "small muted" }, searched(receipt.usage)),
    el("p", { class: "verdict small", id: "otherwise" }, otherwise(receipt, spent, costs, always)),
  );
}

const searched = ({ searches, passages }) =>
  `${plural(searches, "search", "searches")} made, ${plural(passages, "passage", "passages")} read over all prompts.`;

function alwaysCost(costs) {
  if (!costs) return null;
  const k = costs.reference.slice(1);
  const { latency, tokens } = costs.costs;
  return {
    label: `Always reading ${passagesOf(costs.reference).split(" ")[0]}`,
    ms: latency.against[costs.reference].always.value,
    ret: latency.stages[`retrieve_k${k}`].value,
    ob: latency.stages[`read_k${k}`].value,
    tokens: tokens.against[costs.reference].always.value,
    needs: latency.against[costs.reference].always.needs,
  };
}

function otherwise(receipt, spent, costs, always) {
  if (!costs) return "Loading the cost without the gate…";
  if (!always.ms) return `The cost without the gate is not known yet. It needs ${always.needs}.`;
  const price =
    receipt.usage.probe !== null && receipt.k > 0 && always.ms < spent.ms
      ? " Part of it is the cost of the probe."
      : "";
  const said = [difference(always.ms - spent.ms, duration, "")];
  if (always.tokens) said.push(difference(always.tokens - spent.tokens, number, " tokens"));
  return `Against ${always.label.toLowerCase()} (the mean of recent answers), this took ${said.join(" and ")}.${price}`;
}

const difference = (saved, write, unit) => `${write(Math.abs(saved))}${unit} ${saved >= 0 ? "less" : "more"}`;
