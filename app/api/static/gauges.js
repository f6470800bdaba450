// Charts of one receipt: a probability between its thresholds, and costs side by side.
import { passagesOf, percent, picture, svg } from "./draw.js";

/** The smallest and the largest number of passages above 0. */
export const [FEW, MANY] = [1, -1].map((place) => Number(document.body.dataset.ks.split(",").at(place)));

const TOP = 30;
const BAR = 18;

/** Coloured zones from 0 to 1 with a pin at `value`; marks name the thresholds between the zones. */
function gauge(width, value, zones, marks, label) {
  const x = (share) => Math.min(Math.max(share, 0), 1) * width;
  const clip = `zones-${(gauge.count = (gauge.count ?? 0) + 1)}`;
  const pin = x(value);
  const drawn = [
    svg("clipPath", { id: clip }, svg("rect", { x: 0, y: TOP, width, height: BAR, rx: 5 })),
    svg(
      "g",
      { "clip-path": `url(#${clip})` },
      zones.map(({ from, to, kind }) =>
        svg("rect", { x: x(from), y: TOP, width: Math.max(x(to) - x(from), 0), height: BAR, class: kind }),
      ),
    ),
    ...zones.map(({ from, to, name }) => zoneName(x(from), x(to), pin, name)),
    ...marks.flatMap(({ at, name }) => [
      svg("line", { x1: x(at), x2: x(at), y1: TOP - 3, y2: TOP + BAR + 5, class: "tick" }),
      svg("text", { x: x(at), y: TOP + BAR + 19, "text-anchor": anchor(x(at), width, 40) }, name),
    ]),
    svg("path", { d: `M${pin - 6},${TOP - 9} h12 l-6,9 z`, class: "pin" }),
    svg("line", { x1: pin, x2: pin, y1: TOP - 2, y2: TOP + BAR, class: "tick" }),
    svg("text", { x: pin, y: TOP - 14, "text-anchor": anchor(pin, width, 24), class: "strong" }, percent(value, 1)),
  ];
  if (!marks.some(({ at }) => x(at) < 60)) drawn.push(svg("text", { x: 0, y: TOP + BAR + 19 }, "0"));
  if (!marks.some(({ at }) => x(at) > width - 90))
    drawn.push(svg("text", { x: width, y: TOP + BAR + 19, "text-anchor": "end" }, "100 %"));
  return picture(width, TOP + BAR + 24, label, ...drawn);
}

/** The name of a zone, next to the pin if there is room. */
function zoneName(from, to, pin, name) {
  if (!name) return null;
  const room = name.length * 6.6 + 14;
  const places =
    from < pin && pin < to
      ? [
          [from, pin],
          [pin, to],
        ].sort((a, b) => b[1] - b[0] - a[1] + a[0])
      : [[from, to]];
  const middle = (from + to) / 2;
  const clear = Math.abs(pin - middle) > room / 2 || places.length === 1;
  const [left, right] = clear ? [from, to] : places[0];
  return right - left < room
    ? null
    : svg("text", { x: (left + right) / 2, y: TOP + 13, "text-anchor": "middle", class: "ink" }, name);
}

const anchor = (at, width, room) => (at < room ? "start" : at > width - room ? "end" : "middle");

/** p between the thresholds, if there are any. */
export function thresholdGauge(width, p, { tau0, tau1 }) {
  if (tau0 === null)
    return gauge(
      width,
      p,
      [{ from: 0, to: 1, kind: "plain-soft" }],
      [],
      `The model alone: ${percent(p, 1)} likely to be right.`,
    );
  const zones = [
    { from: 0, to: tau1, kind: "k5-soft", name: passagesOf(`k${MANY}`) },
    { from: tau1, to: tau0, kind: "k1-soft", name: passagesOf(`k${FEW}`) },
    { from: tau0, to: 1, kind: "k0-soft", name: "no passage" },
  ];
  const marks = [];
  if (tau1 > 0 && tau1 <= 1 && tau1 < tau0) marks.push({ at: tau1, name: `τ1 ${percent(tau1)}` });
  if (tau0 > 0 && tau0 <= 1) marks.push({ at: tau0, name: `${tau1 === tau0 ? "τ" : "τ0"} ${percent(tau0)}` });
  const said = marks.map(({ name }) => name).join(", ") || "none within reach";
  return gauge(width, p, zones, marks, `The model alone: ${percent(p, 1)} likely to be right. Thresholds: ${said}.`);
}

/** The confidence of the answer and the abstention threshold. */
export function confidenceGauge(width, confidence, tau, action) {
  const label = `Confidence ${percent(confidence, 1)}${tau === null ? "" : `; withheld below ${percent(tau, 1)}`}.`;
  if (tau === null) return gauge(width, confidence, [{ from: 0, to: 1, kind: "plain-soft" }], [], label);
  const given = action === "abstain" ? "plain-soft" : `${action}-soft`;
  const zones = [
    { from: 0, to: tau, kind: "abstain-soft", name: "I don’t know" },
    { from: tau, to: 1, kind: given, name: "answers" },
  ];
  return gauge(width, confidence, zones, [{ at: tau, name: `τ abstain ${percent(tau)}` }], label);
}

/** Stacked bars on one scale, with the total above each. */
export function compareBars(width, rows, what) {
  const sum = (row) => row.parts.reduce((total, { value }) => total + value, 0);
  const scale = width / Math.max(...rows.map(sum), 1e-9);
  const drawn = rows.flatMap((row, place) => {
    const y = place * 44;
    let from = 0;
    const parts = row.parts
      .filter(({ value }) => value > 0)
      .map(({ kind, value }) => {
        const at = from;
        from += value * scale;
        // A minimum width keeps short stages visible; hairlines separate them.
        return svg("rect", {
          x: at,
          y: y + 18,
          width: Math.max(value * scale - 1, 1),
          height: 14,
          rx: 2,
          class: `${kind}${place > 0 ? " reference" : ""}`,
        });
      });
    return [
      svg("text", { x: 0, y: y + 12 }, row.label),
      svg("text", { x: width, y: y + 12, "text-anchor": "end", class: "strong" }, row.total),
      ...parts,
    ];
  });
  return picture(
    width,
    rows.length * 44 - 10,
    `${what}: ${rows.map((row) => `${row.label.toLowerCase()} ${row.total}`).join(", ")}.`,
    ...drawn,
  );
}

/** A dot for each passage read, beside those that the largest k would have read. */
export function passageDots(width, count) {
  const step = Math.min(26, (width - 60) / Math.max(MANY, count));
  const dots = Array.from({ length: Math.max(MANY, count) }, (_, place) =>
    svg("rect", { x: place * step, y: 2, width: step - Math.min(6, step / 4), height: 14, rx: 3, class: place < count ? "read" : "faint" }),
  );
  const said = `${count} read`;
  return picture(
    width,
    18,
    `${count} ${count === 1 ? "passage" : "passages"} read.`,
    ...dots,
    svg("text", { x: width, y: 14, "text-anchor": "end", class: "strong" }, said),
  );
}
