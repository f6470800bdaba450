// The dashboard: reads /dashboard/data every two seconds while the page is visible, and draws it.
import {
  STAGES,
  STAGE_NAMES,
  actionName,
  actionsIn,
  colourOf,
  drawInto,
  duration,
  el,
  number,
  passagesOf,
  percent,
  plural,
  say,
  withInterval,
} from "./draw.js";
import { histogramPicture, latencyPicture, ratioPicture, skipPicture, timelinePicture } from "./charts.js";

const EVERY_MS = 2000;
const AFTER_FAILURE_MS = 5000;
const VERDICTS = {
  saves: "▼ Gating saves",
  costs: "▲ Gating costs more",
  unclear: "≈ No clear difference",
  unknown: "… Not known yet",
};
const HEALTH = {
  ready: ["good", "✓ Works", "Questions are answered."],
  degraded: ["bad", "! Degraded", "Questions are answered, but a part fails; see above."],
  down: ["bad", "✕ Broken", "Questions cannot be answered; a part above says why."],
  draining: ["unknown", "… Stopping", "The gateway is about to stop."],
};
const place = (id) => document.getElementById(id);
let timer = 0;
let reading = null;

place("windows").addEventListener("change", look);
document.addEventListener("visibilitychange", () => (document.hidden ? stop() : look()));
look();

function stop() {
  clearTimeout(timer);
  reading?.abort();
}

async function look() {
  stop();
  const mine = new AbortController();
  reading = mine;
  let again = EVERY_MS;
  try {
    const seconds = place("windows").querySelector("input:checked").value;
    const reply = await fetch(`dashboard/data?window=${seconds}`, { signal: mine.signal });
    if (!reply.ok) throw new Error(`it answered ${reply.status}`);
    show(await reply.json());
    place("trouble").hidden = true;
  } catch (error) {
    // Aborted: the page was hidden or another window was chosen.
    if (error.name === "AbortError") return;
    say(place("trouble"), `The figures cannot be loaded (${error.message}). Trying again every five seconds.`);
    place("trouble").hidden = false;
    again = AFTER_FAILURE_MS;
  }
  if (!document.hidden) timer = setTimeout(look, again);
}

function show(data) {
  showUpstreams(data);
  showHealth(data);
  showReference(data.reference);
  showHeadline(data.breakeven);
  say(place("bypass"), data.bypass.reason.replaceAll(" %", "\u00a0%"));
  place("empty").hidden = data.answers > 0;
  place("filled").hidden = data.answers === 0;
  if (data.answers > 0) showFigures(data);
  const at = new Date(data.now * 1000).toLocaleTimeString("en-GB");
  const workers = plural(data.breakeven.window.workers, "worker answered", "workers answered");
  const refused = `${number(data.shed)} refused since the start`;
  say(place("freshness"), `Updated at ${at}, every two seconds while this page is visible · ${workers} · ${refused}`);
}

function showUpstreams({ upstreams, calibrator }) {
  const rows = Object.entries(upstreams).map(([name, state]) =>
    el(
      "li",
      { class: state === "ok" ? "up" : state.startsWith("ok, ") ? "warn" : "down" },
      name,
      el("span", { class: state === "ok" ? "visually-hidden" : "muted" }, state === "ok" ? "up" : state),
    ),
  );
  const version = calibrator.version ?? "no calibrator";
  const standing = calibrator.problem || (calibrator.certified ? "certified" : "not certified");
  rows.push(
    el(
      "li",
      { class: calibrator.problem || !calibrator.certified ? "warn" : "up" },
      version,
      el("span", { class: "muted" }, standing),
    ),
  );
  const key = JSON.stringify([upstreams, calibrator]);
  if (place("parts").dataset.key !== key) {
    place("parts").dataset.key = key;
    place("parts").replaceChildren(...rows);
  }
}

function showHealth({ state, failed, version, started }) {
  const fails = state === "ready" && failed > 0;
  const [verdict, word, sentence] = fails ? ["bad", "! Requests fail", HEALTH.ready[2]] : HEALTH[state];
  place("health").dataset.verdict = verdict;
  say(place("health"), word);
  const requests = failed ? plural(failed, "request", "requests") : "No request";
  say(place("failures"), `${sentence} ${requests} failed or ${failed > 1 ? "were" : "was"} refused in the last five minutes.`);
  const since = new Date(started * 1000).toLocaleString("en-GB");
  say(place("deployed"), `Version ${version} on ${location.host}, started ${since}.`);
}

/** The served calibrator next to its reference: the first sentence large, the others below. */
function showReference([first, ...others]) {
  for (const [id, text] of [
    ["reference", first ?? ""],
    ["certificate", others.join(" ")],
  ]) {
    place(id).hidden = text === "";
    say(place(id), text.replaceAll(" %", "\u00a0%"));
  }
}

function showHeadline(report) {
  const verdict = report.costs.latency.against[report.reference].verdict;
  place("verdict").dataset.verdict = verdict;
  say(place("verdict"), VERDICTS[verdict]);
  // Keep a number and its percent sign on one line.
  say(place("headline"), report.sentence.replaceAll(" %", "\u00a0%"));
  say(place("caveats"), report.caveats.join(" "));
}

function showFigures(data) {
  const report = data.breakeven;
  place("tiles").replaceChildren(...tiles(data, report));
  const skipped =
    report.skip_rate.value === null
      ? `not known yet (it takes ${report.skip_rate.needs})`
      : withInterval(report.skip_rate, percent);
  const dot = `The dot is the share of gated questions that were answered without reading a passage: ${skipped}.`;
  say(place("skip-words"), `${dot} Right of the line, gating is cheaper than always reading that many passages.`);
  drawInto(place("skip"), (width) => skipPicture(width, report));
  drawInto(place("ratios"), (width) => ratioPicture(width, report));
  place("actions").replaceChildren(
    ...Object.entries(data.actions).map(([action, count]) =>
      el("li", { class: colourOf(action) }, actionName(action), " ", el("b", {}, percent(count / data.answers))),
    ),
  );
  drawInto(place("timeline"), (width) => timelinePicture(width, data.timeline, data.actions, data.started));
  const probed = `of ${plural(data.p.n, "question", "questions")}, coloured by action`;
  say(
    place("p-words"),
    data.p.n > 0
      ? `Calibrated probability that the closed-book answer is right, ${probed}.`
      : "No question in this window was probed with a calibrator.",
  );
  drawInto(place("histogram"), (width) => histogramPicture(width, data.p, data.thresholds));
  drawInto(place("latency"), (width) => latencyPicture(width, data.latency));
  place("latency-table").replaceChildren(...latencyTable(data.latency));
}

function tiles(data, report) {
  const { saved } = data;
  const minutes = Math.max(Math.min(report.window.covered_seconds, report.window.seconds) / 60, 1 / 60);
  const always = `against always ${passagesOf(report.reference)}`;
  return [
    tile("Answers", number(data.answers), `${(data.answers / minutes).toFixed(1)} per minute`),
    tile(
      "Nothing read",
      percent(report.skip_rate.value),
      report.skip_rate.value === null ? `takes ${report.skip_rate.needs}` : `of ${number(report.window.gated)} gated`,
    ),
    tile(
      "Withheld",
      percent(data.actions.abstain / data.answers, 1),
      plural(data.actions.abstain, "answer", "answers"),
    ),
    tile("Passages saved", ...savedWords(saved.passages_always, saved.passages, always)),
    tile("Tokens saved", ...savedWords(saved.tokens_always, saved.tokens, always)),
    tile("In flight", number(data.in_flight), `median ${duration(data.latency.all.total.p50)}`),
  ];
}

function savedWords(always, spent, against) {
  if (always === null || always === 0) return ["–", `not known yet ${against}`];
  return [number(always - spent), `${percent((always - spent) / always)} ${against}`];
}

const tile = (name, value, note) =>
  el("div", {}, el("dt", {}, name), el("dd", {}, value), el("dd", { class: "note" }, note));

function latencyTable(latency) {
  const stages = [...STAGES, "total"];
  const cell = ({ p50, p95 }) => el("td", {}, p50 === null ? "–" : `${duration(p50)} / ${duration(p95)}`);
  const row = (key, name) =>
    el("tr", {}, el("th", { scope: "row" }, name), ...stages.map((stage) => cell(latency[key][stage])));
  return [
    el("caption", { class: "visually-hidden" }, "Median and 95th percentile of each stage, by action"),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", { scope: "col" }, "p50 / p95"),
        ...stages.map((stage) => el("th", { scope: "col" }, STAGE_NAMES[stage] ?? "Total")),
      ),
    ),
    el("tbody", {}, ...actionsIn(latency).map((action) => row(action, actionName(action))), row("all", "All")),
  ];
}
