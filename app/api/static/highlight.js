// Marks the answer in a passage.
import { el } from "./draw.js";

const SMALL = new Set(
  "a an and are as at be by for from has in is it its of on or s that the this to was were with".split(" "),
);
const WORD = /[\p{L}\p{N}]+/gu;

function words(text) {
  return [...text.matchAll(WORD)].map((found) => ({
    word: found[0].toLowerCase(),
    from: found.index,
    to: found.index + found[0].length,
  }));
}

/** The words of the answer without stop words and words of the question. */
function news(answer, question) {
  const asked = new Set(words(question).map(({ word }) => word));
  const all = words(answer ?? "").map(({ word }) => word);
  const fresh = all.filter((word) => !SMALL.has(word) && !asked.has(word));
  return fresh.length > 0 ? fresh : all.filter((word) => !SMALL.has(word));
}

/** Whether every new word of the answer is in the passage. */
export function contains(text, answer, question) {
  const wanted = news(answer, question);
  const there = new Set(words(text).map(({ word }) => word));
  return wanted.length > 0 && wanted.every((word) => there.has(word));
}

/** Whether only stop words of one sentence are between two marked words. */
const joined = (between) => !/[.!?;\n]/.test(between) && words(between).every(({ word }) => SMALL.has(word));

/** The passage with the answer's words marked; neighbouring ones together. */
export function highlighted(text, answer, question) {
  if (!contains(text, answer, question)) return [text];
  const wanted = new Set(news(answer, question));
  const spans = [];
  for (const { word, from, to } of words(text)) {
    if (!wanted.has(word)) continue;
    const last = spans.at(-1);
    if (last && joined(text.slice(last.to, from))) last.to = to;
    else spans.push({ from, to });
  }
  const pieces = [];
  let done = 0;
  for (const { from, to } of spans) {
    pieces.push(text.slice(done, from), el("mark", {}, text.slice(from, to)));
    done = to;
  }
  return [...pieces, text.slice(done)];
}
