// The canvas: one cell per position, grouped by block, as it stood after a given forward.

import { make } from "./dom.js";

const WIDE_BLOCK = 16; // shorter blocks share lines
const SPECIAL = /^<[|｜]?[^<>\s]{1,40}[|｜]?>$/u;

/** Draws a run. Owns its cells; touches only those that changed since the last draw. */
export class CanvasView {
  constructor(host, tip) {
    this.host = host;
    this.tip = tip;
    this.clear();
    host.addEventListener("pointerover", (event) => this.point(event.target));
    host.addEventListener("pointerleave", () => tip.hide());
    host.addEventListener("focusin", (event) => this.point(event.target));
    host.addEventListener("focusout", () => tip.hide());
    host.addEventListener("keydown", (event) => this.move(event));
  }

  clear() {
    this.run = null;
    this.cells = [];
    this.drawn = [];
    this.layout = "";
    this.marks = new Set();
    this.host.replaceChildren();
  }

  /** Positions whose tokens differ from those of the other run. */
  mark(positions) {
    for (const position of this.marks) this.cells[position]?.classList.remove("differs");
    this.marks = positions;
    for (const position of positions) this.cells[position]?.classList.add("differs");
  }

  /** Draw `run` as after frame `index`; -1 is before the first forward. */
  draw(run, index) {
    this.run = run;
    this.index = index;
    this.lay(run);
    const canvas = run.frames[index]?.canvas;
    const start = canvas?.start ?? -1;
    const stop = canvas ? start + canvas.token_ids.length : -1;
    const end = run.isOver && index === run.frames.length - 1 ? run.numTokens : null;
    const rejected = new Set(canvas?.rejected.map((offset) => start + offset));
    for (let position = 0; position < this.cells.length; position++) {
      const cell = run.cellAt(position, index);
      const isActive = position >= start && position < stop;
      if (cell) {
        const isBehind = end !== null && position >= end;
        this.paint(position, `${isBehind ? "x" : "d"}${cell.id}${cell.frame === index ? "!" : ""}`, () => this.decided(position, cell, isBehind, cell.frame === index));
      } else if (isActive) {
        const guess = canvas.candidates[position - start];
        const share = canvas.confidences[position - start] ?? 0;
        const key = `g${rejected.has(position) ? "r" : ""}${share}${guess}`;
        this.paint(position, key, () => this.guess(position, guess, share, rejected.has(position)));
      } else {
        this.paint(position, "", () => this.empty(position));
      }
    }
    this.host.dataset.frame = String(index);
  }

  /** Cells for every position, once it is known how many there are and where blocks begin. */
  lay(run) {
    const starts = run.blockStarts();
    const layout = `${run.length}:${starts.length}:${run.blockLength}`;
    if (layout === this.layout) return;
    this.layout = layout;
    this.drawn = new Array(run.length);
    this.cells = Array.from({ length: run.length }, (_, position) => make("span", { className: "cell", tabIndex: -1, "data-pos": position }));
    this.host.classList.toggle("flow", run.blockLength < WIDE_BLOCK);
    const blocks = starts.map((start, number) => {
      const stop = starts[number + 1] ?? run.length;
      return make("div", { className: "block", "data-block": number + 1 }, ...this.cells.slice(start, stop));
    });
    this.host.replaceChildren(...blocks);
    if (this.cells.length) this.cells[0].tabIndex = 0;
    this.mark(this.marks);
  }

  paint(position, key, apply) {
    if (this.drawn[position] === key) return;
    this.drawn[position] = key;
    apply();
  }

  decided(position, cell, isBehind, isFresh) {
    const element = this.cells[position];
    const depth = Math.min(cell.depth, 4);
    const kind = isBehind ? "behind" : cell.kind;
    element.className = `cell ${kind}${depth ? ` d${depth}` : ""}${isFresh ? " fresh" : ""}${this.marks.has(position) ? " differs" : ""}`;
    element.style.setProperty("--sure", cell.confidence.toFixed(3));
    element.classList.toggle("unsure", cell.confidence < 0.5);
    if (cell.depth && !isBehind) element.dataset.depth = cell.depth;
    else delete element.dataset.depth;
    show(element, cell.text);
  }

  guess(position, text, share, isRejected) {
    const element = this.cells[position];
    element.className = `cell guess${isRejected ? " rejected" : ""}`;
    element.style.setProperty("--sure", share.toFixed(3));
    delete element.dataset.depth;
    show(element, text ?? "");
  }

  empty(position) {
    const element = this.cells[position];
    element.className = "cell empty";
    delete element.dataset.depth;
    element.textContent = "\u00a0";
  }

  point(target) {
    const element = target.closest?.(".cell");
    if (!element || !this.run) return;
    this.tip.show(element, this.describe(Number(element.dataset.pos)));
  }

  /** What is known of a position, as [name, value] pairs; the first one is the token itself. */
  describe(position) {
    const cell = this.run.cellAt(position, this.index);
    const rows = [["position", String(position + 1)]];
    if (cell) {
      const how = { policy: "the policy", refresh: "the policy, on a refresh", draft: `an accepted draft of depth ${cell.depth}` };
      return [
        ["token", JSON.stringify(cell.text)],
        ["confidence", percent(cell.confidence)],
        ["decided by", how[cell.kind]],
        ["step", String(cell.step)],
        ["forward", String(cell.forward)],
        ...rows,
      ];
    }
    const canvas = this.run.frames[this.index]?.canvas;
    const offset = position - (canvas?.start ?? 0);
    const guess = canvas?.candidates[offset];
    if (offset < 0 || guess === undefined || guess === null) return [["token", "undecided"], ...rows];
    const dropped = canvas.rejected.includes(offset) ? [["draft", "rejected in this forward"]] : [];
    return [["token", `undecided; now ${JSON.stringify(guess)}`], ["confidence", percent(canvas.confidences[offset])], ...dropped, ...rows];
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key] ?? this.lineStep(event.key);
    const element = event.target.closest(".cell");
    if (!step || !element) return;
    event.preventDefault();
    const next = Math.min(Math.max(Number(element.dataset.pos) + step, 0), this.cells.length - 1);
    element.tabIndex = -1;
    const target = this.cells[next];
    target.tabIndex = 0;
    target.setAttribute("aria-label", this.describe(next).map(([name, value]) => `${name} ${value}`).join(", "));
    target.focus();
  }

  /** Cells between the focused one and the one above or below it. */
  lineStep(key) {
    if (key !== "ArrowUp" && key !== "ArrowDown") return 0;
    const from = document.activeElement;
    const position = Number(from.dataset.pos);
    const direction = key === "ArrowDown" ? 1 : -1;
    for (let next = position + direction; this.cells[next]; next += direction) {
      const cell = this.cells[next];
      const isOtherLine = Math.abs(cell.offsetTop - from.offsetTop) > 4;
      const isUnder = direction > 0 ? cell.offsetLeft + cell.offsetWidth > from.offsetLeft : cell.offsetLeft <= from.offsetLeft;
      if (isOtherLine && isUnder) return next - position;
    }
    return 0;
  }
}

/** Write a token: line breaks and tabs visible, special tokens short and small. */
function show(element, text) {
  const isSpecial = SPECIAL.test(text);
  element.classList.toggle("special", isSpecial);
  element.textContent = isSpecial ? shorten(text) : text.replaceAll("\n", "↵").replaceAll("\t", "⇥") || "\u00a0";
}

function shorten(text) {
  const name = text.replace(/[<>|｜]/gu, "");
  return /eos|endoftext|end_of_text/i.test(name) ? "end" : name.slice(0, 8);
}

function percent(share) {
  return share === null || share === undefined ? "–" : `${(share * 100).toFixed(1)} %`;
}
