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

/** What the run did up to frame `index`, as a sentence: where the tokens came from, and what drafts saved. */
export function inWords(run, index) {
  const frame = run.frames[index];
  if (!frame) return "";
  const { forwards, steps } = frame.canvas;
  const head = `${some(forwards, "forward")} did ${some(steps, "step")} and decided ${some(frame.decided, "position")}`;
  if (frame.byDraft) {
    const saved = steps > forwards ? `, which saved ${some(steps - forwards, "forward")}` : "";
    return `${head}, ${frame.byDraft} of them by drafts that held (orange)${saved}.`;
  }
  if (run.frames.slice(0, index + 1).some(({ canvas }) => canvas.drafted)) return `${head}; no draft has held.`;
  const perStep = frame.decided / Math.max(steps, 1);
  if (perStep >= 2) return `${head}: the policy decides ${perStep.toFixed(1)} at once, so hardly anything is left to draft.`;
  return `${head}; nothing was drafted.`;
}

function some(count, name) {
  return `${count} ${name}${count === 1 ? "" : "s"}`;
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
