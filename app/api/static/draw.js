// Shared by both pages: elements, formatted numbers, and the width of charts.

export const STAGES = ["probe", "embed", "search", "read"];
export const STAGE_NAMES = { probe: "Probe", embed: "Embed", search: "Search", read: "Read", write: "Write" };

const NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];

/** The actions in an object of figures, in the order of the gateway. */
export const actionsIn = (figures) => Object.keys(figures).filter((name) => /^(k\d+|abstain)$/.test(name));

/** How many passages an action such as `k5` reads, in words. */
export function passagesOf(action) {
  const k = Number(action.slice(1));
  return `${NUMBERS[k] ?? k} ${k < 2 ? "passage" : "passages"}`;
}

/** The name of an action, with a capital letter. */
export function actionName(action) {
  if (action === "abstain") return "Withheld";
  const said = passagesOf(action);
  return said[0].toUpperCase() + said.slice(1);
}

/** The class for the colour of an action: no passage, one passage, more passages, or abstain. */
export const colourOf = (action) => (["k0", "k1", "abstain"].includes(action) ? action : "k5");

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** An HTML element; text children stay text, so nothing from an answer or a passage is ever markup. */
export function el(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** A chart as wide as its place, with a label for screen readers. */
export function picture(width, height, label, ...children) {
  return svg(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    ...children,
  );
}

/** Draw into a place, and again when its width changes. */
export function drawInto(place, draw) {
  place.redraw = () => {
    place.drawnAt = Math.floor(place.clientWidth);
    if (place.drawnAt > 0) place.replaceChildren(draw(place.drawnAt));
  };
  place.redraw();
  widths.observe(place);
}

const widths = new ResizeObserver((entries) =>
  entries.forEach((entry) => {
    if (entry.target.drawnAt !== Math.floor(entry.target.clientWidth)) entry.target.redraw();
  }),
);

/** A place for a chart, which is drawn when the place has a width. */
export function figure(draw) {
  const node = el("div", { class: "picture" });
  node.draw = draw;
  return node;
}

/** Draw every chart inside an element. */
export function drawAll(place) {
  place.querySelectorAll(".picture").forEach((one) => drawInto(one, one.draw));
}

// Numbers stay on one line with their unit, and negative numbers get a real minus sign.
const written = (text) => text.replace(/ /g, "\u00a0").replace(/^-/, "\u2212");

/** A share in percent; small shares get one decimal, as in the sentences of the gateway. */
export const percent = (share, digits = share !== 0 && Math.abs(share) < 0.0995 ? 1 : 0) =>
  share === null || share === undefined ? "–" : written(`${(share * 100).toFixed(digits)} %`);

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 10) return written(`${ms.toFixed(1)} ms`);
  if (ms < 1000) return written(`${Math.round(ms)} ms`);
  return written(`${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`);
}

export const number = (value) =>
  value === null || value === undefined ? "–" : written(Math.round(value).toLocaleString("en-GB"));

export const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;

/** A known figure with its interval. */
export const withInterval = ({ value, low, high }, write) => `${write(value)} (${write(low)} to ${write(high)})`;

/** Set text only if it changes, so that a live region announces only changes. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
