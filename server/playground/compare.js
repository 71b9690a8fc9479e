// Two runs side by side: which tokens differ, and what each run cost.

import { make } from "./dom.js";
import { seconds } from "./figures.js";

/** Positions of the answers whose tokens differ; where only one of two ended runs has a token, that differs too. */
export function differing(a, b) {
  const positions = new Set();
  const isOver = a.isOver && b.isOver;
  const ends = [a.numTokens ?? a.length, b.numTokens ?? b.length];
  for (let position = 0; position < Math.max(...ends); position++) {
    const [left, right] = [a, b].map((run, side) => (position < ends[side] ? run.cells[position] : undefined));
    if (left && right ? left.id !== right.id : isOver && (left || right)) positions.add(position);
  }
  return positions;
}

/** The rows of the final table, as texts. */
export function comparison(a, b) {
  const figure = (run, name, digits) => (run.figures ? run.figures[name].toFixed(digits) : "–");
  const row = (label, read, note) => [label, read(a), read(b), note?.() ?? ""];
  return [
    row("forwards", (run) => figure(run, "forwards", 0), () => ratio(a.figures?.forwards, b.figures?.forwards)),
    row("tokens / forward", (run) => figure(run, "tokens_per_forward", 2)),
    row("rows", (run) => figure(run, "rows", 0), () => ratio(a.figures?.rows, b.figures?.rows)),
    row("accepted depth", (run) => figure(run, "mean_accepted_depth", 2)),
    row("tokens", (run) => String(run.numTokens ?? "–")),
    row("decoding", (run) => seconds(run.figures && run.figures.decode_seconds * 1000)),
    row("time in all", (run) => seconds(run.endedAt), () => ratio(a.endedAt, b.endedAt)),
  ];
}

export function drawTable(host, a, b) {
  const count = differing(a, b).size;
  const sameText = a.text === b.text;
  const verdict = sameText ? "Both texts are the same." : `The texts differ: ${count} token${count === 1 ? "" : "s"} are not the same.`;
  const head = make("tr", {}, ...["", "A", "B", "A ÷ B"].map((text) => make("th", { scope: "col" }, text)));
  const rows = comparison(a, b).map(([label, ...values]) =>
    make("tr", {}, make("th", { scope: "row" }, label), ...values.map((text) => make("td", {}, text))),
  );
  host.replaceChildren(make("table", {}, make("caption", {}, verdict), make("thead", {}, head), make("tbody", {}, ...rows)));
  host.hidden = false;
}

function ratio(a, b) {
  return a && b ? `${(a / b).toFixed(2)} ×` : "";
}
