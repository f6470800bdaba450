// Charts of a window of traffic. Each row has its label above its line, so that it fits a phone.
import {
  STAGES,
  STAGE_NAMES,
  actionName,
  actionsIn,
  colourOf,
  duration,
  number,
  passagesOf,
  percent,
  picture,
  svg,
} from "./draw.js";

const ROW = 44;
const COSTS = { latency: "Latency", tokens: "Tokens", money: "Money" };

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function words(width, y, left, right) {
  return [svg("text", { x: 0, y, class: "strong" }, left), svg("text", { x: width, y, "text-anchor": "end" }, right)];
}

/** Every cost against every number of passages; the reference comes first. */
function comparisons(report) {
  const others = Object.keys(report.costs.latency.against).filter((k) => k !== report.reference);
  const references = [report.reference, ...others];
  return Object.keys(COSTS)
    .filter((cost) => report.costs[cost])
    .flatMap((cost) =>
      references.map((k) => ({
        name: `${COSTS[cost]}, against always ${passagesOf(k).split(" ")[0]}`,
        ...report.costs[cost].against[k],
      })),
    );
}

/** The current skip rate and the break-even skip rate, for each cost. */
export function skipPicture(width, report) {
  const x = (share) => clamp(share, 0, 1) * width;
  const skip = report.skip_rate;
  const rows = comparisons(report);
  const drawn = rows.flatMap(({ name, break_even_skip: pays }, place) => {
    const y = place * ROW;
    const line = y + 26;
    const parts = [
      ...words(width, y + 12, name, paysWords(pays)),
      svg("rect", { x: 0, y: line - 6, width, height: 12, rx: 4, class: "faint" }),
    ];
    if (pays.value !== null && pays.value < 1) {
      parts.push(
        svg("rect", { x: x(pays.value), y: line - 6, width: width - x(pays.value), height: 12, rx: 4, class: "zone" }),
      );
      parts.push(svg("line", { x1: x(pays.low), x2: x(pays.high), y1: line, y2: line, class: "interval" }));
      parts.push(svg("line", { x1: x(pays.value), x2: x(pays.value), y1: line - 9, y2: line + 9, class: "tick" }));
    }
    if (skip.value !== null) {
      parts.push(svg("line", { x1: x(skip.low), x2: x(skip.high), y1: line, y2: line, class: "span k0" }));
      parts.push(svg("circle", { cx: x(skip.value), cy: line, r: 6, class: "k0 halo" }));
    }
    return parts;
  });
  const bottom = rows.length * ROW;
  drawn.push(
    svg("text", { x: 0, y: bottom + 8 }, "0"),
    svg("text", { x: width, y: bottom + 8, "text-anchor": "end" }, "100 % skipped"),
  );
  const said = rows.map(({ name, break_even_skip: pays }) => `${name}: ${paysWords(pays)}`);
  const label = `Skip rate ${percent(skip.value)}. ${said.join(". ")}.`;
  return picture(width, bottom + 12, label, ...drawn);
}

function paysWords(pays) {
  if (pays.value === null) return "not known yet";
  if (pays.value > 1) return "never pays";
  if (pays.value <= 0) return "pays at any";
  return `pays from ${percent(pays.value)}`;
}

/** The cost of gating over always reading, for each cost and each number of passages. */
export function ratioPicture(width, report) {
  const rows = comparisons(report);
  const known = rows.filter(({ gate_cost_ratio: ratio }) => ratio.value !== null);
  const most = clamp(Math.max(1.5, ...known.map(({ gate_cost_ratio: ratio }) => ratio.high)), 1.5, 5);
  const x = (ratio) => (clamp(ratio, 0, most) / most) * width;
  const drawn = rows.flatMap(({ name, gate_cost_ratio: ratio, verdict }, place) => {
    const y = place * ROW;
    const line = y + 26;
    const parts = [
      ...words(width, y + 12, name, ratioWords(ratio)),
      svg("line", { x1: 0, x2: width, y1: line, y2: line, class: "track" }),
    ];
    if (ratio.value === null) return parts;
    const kind = verdict === "saves" || verdict === "costs" ? verdict : "unclear";
    return [
      ...parts,
      svg("rect", {
        x: Math.min(x(1), x(ratio.value)),
        y: line - 4,
        width: Math.abs(x(ratio.value) - x(1)),
        height: 8,
        class: kind,
        opacity: 0.35,
      }),
      svg("line", { x1: x(ratio.low), x2: x(ratio.high), y1: line, y2: line, class: "interval" }),
      svg("circle", { cx: x(ratio.value), cy: line, r: 6, class: `${kind} halo` }),
    ];
  });
  const bottom = rows.length * ROW;
  drawn.push(
    svg("line", { x1: x(1), x2: x(1), y1: 18, y2: bottom - 6, class: "threshold" }),
    svg("text", { x: x(1), y: bottom + 8, "text-anchor": "middle" }, "1: the same"),
  );
  return picture(
    width,
    bottom + 12,
    `Cost of gating. ${rows.map(({ name, gate_cost_ratio: ratio }) => `${name}: ${ratioWords(ratio)}`).join(". ")}.`,
    ...drawn,
  );
}

function ratioWords(ratio) {
  if (ratio.value === null) return "not known yet";
  const change = Math.round((ratio.value - 1) * 100);
  if (change === 0) return "the same";
  return change < 0 ? `${-change} % less` : `${change} % more`;
}

/** Stacked columns by action; `named` says what a column is. */
function stacked(width, height, counts, named, label, extras = () => []) {
  const places = counts.k0.length;
  const actions = actionsIn(counts);
  const sums = counts.k0.map((_, place) => actions.reduce((sum, action) => sum + counts[action][place], 0));
  const most = Math.max(...sums, 1);
  const base = height - 22;
  const y = (count) => (count / most) * (base - 18);
  const step = width / places;
  const columns = sums.flatMap((sum, place) => {
    let top = base;
    const parts = actions.filter((action) => counts[action][place] > 0).map((action) => {
      const tall = y(counts[action][place]);
      top -= tall;
      return svg("rect", {
        x: place * step + 0.5,
        y: top,
        width: Math.max(step - 1.5, 1),
        height: tall,
        class: colourOf(action),
      });
    });
    const said = actions.filter((action) => counts[action][place] > 0).map(
      (action) => `${actionName(action).toLowerCase()} ${counts[action][place]}`,
    );
    return sum === 0 ? [] : [svg("g", {}, ...parts, svg("title", {}, `${named(place)}: ${said.join(", ")}`))];
  });
  return picture(
    width,
    height,
    label,
    svg("line", { x1: 0, x2: width, y1: base - y(most), y2: base - y(most), class: "rule" }),
    svg("text", { x: width, y: base - y(most) - 5, "text-anchor": "end" }, number(most)),
    ...columns,
    svg("line", { x1: 0, x2: width, y1: base + 0.5, y2: base + 0.5, class: "rule" }),
    ...extras({ base, top: base - y(most) }),
  );
}

/** Answers over time, by action. */
export function timelinePicture(width, timeline, actions, started) {
  const clock = (seconds) =>
    new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  const at = (place) => timeline.start + place * timeline.bucket_seconds;
  const places = timeline.k0.length;
  const said = actionsIn(actions).map((action) => `${actionName(action).toLowerCase()} ${actions[action]}`);
  const label = `Answers over time: ${said.join(", ")}.`;
  const start = ((started - timeline.start) / (places * timeline.bucket_seconds)) * width;
  return stacked(
    width,
    180,
    timeline,
    (place) => clock(at(place)),
    label,
    ({ base, top }) => [
      ...(start > 0
        ? [
            svg("line", { x1: start, x2: start, y1: top, y2: base, class: "threshold" }),
            svg("text", { x: start, y: top + 10, "text-anchor": start > width / 2 ? "end" : "start" }, " started "),
          ]
        : []),
      svg("text", { x: 0, y: base + 17 }, clock(at(0))),
      svg("text", { x: width / 2, y: base + 17, "text-anchor": "middle" }, clock(at(places / 2))),
      svg("text", { x: width, y: base + 17, "text-anchor": "end" }, "now"),
    ],
  );
}

/** The distribution of the probabilities, with the thresholds. */
export function histogramPicture(width, histogram, thresholds) {
  const bins = histogram.k0.length;
  const named = (place) => `${percent(place / bins)} to ${percent((place + 1) / bins)}`;
  const cuts = [
    ["τ1", thresholds?.tau1],
    ["τ0", thresholds?.tau0],
  ].filter(([, at]) => at > 0 && at <= 1);
  const shown = cuts.length === 2 && cuts[0][1] === cuts[1][1] ? [["τ", cuts[0][1]]] : cuts;
  const said = shown.map(([name, at]) => `, ${name} at ${percent(at)}`);
  const label = `Probabilities of ${number(histogram.n)} questions${said.join("")}.`;
  return stacked(width, 300, histogram, named, label, ({ base, top }) => [
    ...shown.flatMap(([name, at]) => [
      svg("line", { x1: at * width, x2: at * width, y1: top, y2: base + 4, class: "threshold" }),
      svg(
        "text",
        {
          x: at * width,
          y: base + 17,
          "text-anchor": at > 0.9 ? "end" : at < 0.1 ? "start" : "middle",
          class: "strong",
        },
        `${name} ${percent(at)}`,
      ),
    ]),
    shown.some(([, at]) => at < 0.2) ? null : svg("text", { x: 0, y: base + 17 }, "0"),
    shown.some(([, at]) => at > 0.75) ? null : svg("text", { x: width, y: base + 17, "text-anchor": "end" }, "100 %"),
  ]);
}

/** From the median to the 95th percentile, for each action and each stage that ran. */
export function latencyPicture(width, latency) {
  const rows = [
    ...actionsIn(latency).map((action) => ({
      kind: colourOf(action),
      name: actionName(action),
      ...latency[action].total,
    })),
    ...STAGES.map((stage) => ({ kind: stage, name: `${STAGE_NAMES[stage]} stage`, ...latency.all[stage] })),
  ].filter(({ n }) => n > 0);
  const most = Math.max(...rows.map(({ p95 }) => p95), 1e-9);
  const x = (ms) => 6 + (ms / most) * (width - 12);
  const drawn = rows.flatMap(({ kind, name, p50, p95 }, place) => {
    const y = place * 40;
    const line = y + 25;
    return [
      ...words(width, y + 12, name, `${duration(p50)} – ${duration(p95)}`),
      svg("line", { x1: 0, x2: width, y1: line, y2: line, class: "track" }),
      svg("line", { x1: x(p50), x2: x(p95), y1: line, y2: line, class: `span ${kind}` }),
      svg("circle", { cx: x(p50), cy: line, r: 6, class: `${kind} halo` }),
      svg("circle", { cx: x(p95), cy: line, r: 4, class: `${kind} halo` }),
    ];
  });
  const said = rows.map(({ name, p50, p95 }) => `${name}: ${duration(p50)}, ${duration(p95)}`);
  return picture(width, rows.length * 40, `Median and 95th percentile. ${said.join(". ")}.`, ...drawn);
}
