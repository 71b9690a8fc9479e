// The numbers beside a run: counted from its frames while it runs, the server's own once it has ended.

import { make } from "./dom.js";

const TILES = [
  ["tpf", "tokens / forward"],
  ["forwards", "forwards"],
  ["depth", "accepted depth"],
  ["rate", "tokens / s"],
  ["first", "first block"],
];

export class FiguresView {
  constructor(host) {
    this.values = new Map();
    for (const [name, label] of TILES) {
      const value = make("dd", { "data-figure": name }, "–");
      this.values.set(name, value);
      host.append(make("div", {}, make("dt", {}, label), value));
    }
  }

  draw(run, index) {
    const shown = figuresAt(run, index);
    for (const [name, value] of this.values) value.textContent = shown[name];
  }
}

/** Every figure as text, after frame `index`. */
export function figuresAt(run, index) {
  const frame = run.frames[index];
  const isLast = run.isOver && index === run.frames.length - 1;
  const { figures } = run;
  const first = run.firstTextAt !== null && (isLast || (frame && frame.at >= run.firstTextAt)) ? seconds(run.firstTextAt) : "–";
  if (isLast && figures && run.numTokens !== null) {
    return {
      tpf: figures.tokens_per_forward.toFixed(2),
      forwards: String(figures.forwards),
      depth: figures.mean_accepted_depth.toFixed(2),
      rate: rate(run.numTokens, run.endedAt),
      first,
    };
  }
  if (!frame) return { tpf: "–", forwards: "0", depth: "–", rate: "–", first };
  return {
    tpf: (frame.decided / frame.canvas.forwards).toFixed(2),
    forwards: String(frame.canvas.forwards),
    depth: frame.denoised ? (frame.depth / frame.denoised).toFixed(2) : "–",
    rate: rate(frame.decided, frame.at),
    first,
  };
}

export function seconds(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "–";
  return milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(2)} s`;
}

function rate(count, milliseconds) {
  if (!milliseconds) return "–";
  const value = count / (milliseconds / 1000);
  return value < 10 ? value.toFixed(1) : String(Math.round(value));
}
