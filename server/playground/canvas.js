// The canvas: one cell per position, grouped by block, as it stood after a given forward. Around the canvas of a refill
// stand the cells that were kept. Cells are counted over all of them; a cell's place among the run's own is its position.

import { make } from "./dom.js";
import { percent, quoted, show } from "./token.js";
import { CellWalk } from "./walk.js";

const WIDE_BLOCK = 16; // shorter blocks share lines

/** Draws a run. Owns its cells; touches only those that changed since the last draw. */
export class CanvasView {
  constructor(host, tip) {
    this.host = host;
    this.tip = tip;
    this.walk = new CellWalk(host, (cell) => this.describe(cell));
    this.clear();
    host.addEventListener("pointerover", (event) => this.point(event.target));
    host.addEventListener("pointerleave", () => tip.hide());
    host.addEventListener("focusin", (event) => this.point(event.target));
    host.addEventListener("focusout", () => tip.hide());
  }

  clear() {
    this.run = null;
    this.cells = []; // the run's own
    this.all = [];
    this.drawn = [];
    this.layout = "";
    this.marks = new Set();
    this.picks = new Set();
    this.host.replaceChildren();
    this.tip.hide();
  }

  /** Positions whose tokens differ from those of the other run. */
  mark(positions) {
    for (const position of this.marks) this.cells[position]?.classList.remove("differs");
    this.marks = positions;
    for (const position of positions) this.cells[position]?.classList.add("differs");
  }

  /** The cells from `first` to `last`, counted over all of them, would be filled again; null picks none. */
  pick(range) {
    for (const cell of this.picks) cell.classList.remove("picked");
    this.picks = new Set(range ? this.all.slice(range.first, range.last + 1) : []);
    for (const cell of this.picks) cell.classList.add("picked");
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
        const isFresh = cell.frame === index;
        this.paint(position, `${isBehind ? "x" : "d"}${cell.id}${isFresh ? "!" : ""}`, () => this.decided(position, cell, isBehind, isFresh));
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
    this.tip.refresh();
  }

  /** Cells for every position, once it is known how many there are and where blocks begin. */
  lay(run) {
    const starts = run.blockStarts();
    const layout = `${run.length}:${starts.length}:${run.blockLength}`;
    if (layout === this.layout) return;
    this.layout = layout;
    this.tip.hide(); // its cell goes
    this.drawn = new Array(run.length);
    this.cells = Array.from({ length: run.length }, (_, position) => make("span", { className: "cell", tabIndex: -1, "data-pos": position }));
    this.host.classList.toggle("flow", Boolean(run.around) || run.blockLength < WIDE_BLOCK);
    const blocks = starts.map((start, number) => {
      const stop = starts[number + 1] ?? run.length;
      return make("div", { className: "block", "data-block": number + 1 }, ...this.cells.slice(start, stop));
    });
    const [before, after] = [run.around?.before ?? [], run.around?.after ?? []].map((pieces) => pieces.map(keptCell));
    this.all = [...before, ...this.cells, ...after];
    this.all.forEach((cell, order) => (cell.dataset.order = order));
    this.host.replaceChildren(...before, ...blocks, ...after);
    this.walk.follow(this.all);
    this.mark(this.marks);
    this.pick(null);
  }

  paint(position, key, apply) {
    if (this.drawn[position] === key) return;
    this.drawn[position] = key;
    apply();
    const element = this.cells[position];
    if (this.marks.has(position)) element.classList.add("differs");
    if (this.picks.has(element)) element.classList.add("picked");
  }

  decided(position, cell, isBehind, isFresh) {
    const element = this.cells[position];
    const depth = Math.min(cell.depth, 4);
    const kind = isBehind ? "behind" : cell.kind;
    element.className = `cell ${kind}${depth ? ` d${depth}` : ""}${isFresh ? " fresh" : ""}`;
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
    if (element && this.run) this.tip.show(element, () => this.describe(element));
  }

  /** What is known of a cell, as [name, value] pairs; the first one is the token itself. */
  describe(element) {
    const rows = [["position", String(Number(element.dataset.order) + 1)]];
    if (element.dataset.pos === undefined) return [["token", quoted(element.dataset.text)], ["kept", "from the answer before"], ...rows];
    const position = Number(element.dataset.pos);
    const cell = this.run.cellAt(position, this.index);
    if (cell) {
      const how = { policy: "the policy", refresh: "the policy, on a refresh", draft: `an accepted draft of depth ${cell.depth}` };
      return [
        ["token", quoted(cell.text)],
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
    return [["token", `undecided; now ${quoted(guess)}`], ["confidence", percent(canvas.confidences[offset])], ...dropped, ...rows];
  }
}

function keptCell({ text }) {
  const cell = make("span", { className: "cell kept", tabIndex: -1, "data-text": text });
  show(cell, text);
  return cell;
}
