// One run on the page: heading, canvas, bars, numbers and the plain answer.

import { BarsView } from "./bars.js";
import { CanvasView } from "./canvas.js";
import { button, make } from "./dom.js";
import { FiguresView, inWords } from "./figures.js";
import { pieces, piecesOfCells, piecesOfText } from "./infill.js";
import { selectedElements, selectedText } from "./selection.js";

const REASONS = { stop: "ended by itself", length: "cut at max_tokens", stopped: "stopped by you" };

export class Pane {
  /** `actions`: buttons of the heading as {label, act(pane), why(pane)}; `why` says why it cannot be pressed, or null. */
  constructor(name, { tip, onSeek, actions }) {
    this.name = name;
    this.run = null;
    this.index = -1;
    this.title = make("h2", {});
    this.state = make("p", { className: "state" });
    this.fault = make("p", { className: "error", role: "alert", hidden: true });
    this.canvasHost = make("div", { className: "canvas", role: "group", "aria-label": `Canvas ${name}` });
    this.bars = make("canvas", { className: "bars", role: "img", "aria-label": "One bar per forward" });
    this.figures = make("dl", { className: "figures" });
    this.words = make("p", { className: "words" });
    this.answer = make("div", { className: "answer", "aria-label": "Answer", hidden: true });
    this.buttons = actions.map((action) => [action, button(action.label, () => action.act(this), { className: "quiet" })]);
    for (const [, element] of this.buttons) element.addEventListener("mousedown", (event) => event.preventDefault()); // a press keeps the selection
    const head = make("header", {}, make("div", { className: "heading" }, this.title, this.state), make("div", { className: "actions" }, ...this.buttons.map(([, element]) => element)));
    const numbers = make("div", { className: "numbers" }, this.figures, this.words);
    this.element = make("section", { className: "pane", "data-pane": name }, head, this.fault, this.canvasHost, this.bars, numbers, this.answer);
    this.canvasView = new CanvasView(this.canvasHost, tip);
    this.barsView = new BarsView(this.bars, onSeek);
    this.figuresView = new FiguresView(this.figures);
    this.allow();
  }

  /** Show a run from its beginning; null empties the pane. */
  show(run) {
    this.run = run;
    this.index = -1;
    this.canvasView.clear();
    this.title.textContent = run?.label ?? "";
    this.draw();
    this.allow();
  }

  /** Draw the run after frame `index`, or after its latest one. `scale`: see BarsView. */
  draw(index = Infinity, scale = undefined) {
    const { run } = this;
    if (!run) return;
    this.index = Math.min(index, run.frames.length - 1);
    this.canvasView.draw(run, this.index);
    this.barsView.draw(run, this.index, scale);
    this.figuresView.draw(run, this.index);
    this.words.textContent = inWords(run, this.index);
    this.drawAnswer();
    this.fault.textContent = run.fault ?? "";
    this.fault.hidden = !run.fault;
    this.state.textContent = this.stateText();
    this.element.classList.toggle("running", !run.isOver);
    this.allow();
  }

  /** The answer's text, once it is whole or as far as it has come; a refilled part is marked in it. */
  drawAnswer() {
    const { run } = this;
    const parts = this.index === run.frames.length - 1 ? run.parts : ["", "", ""];
    const lead = this.lead.length;
    const isEmpty = run.isOver && !run.fault && run.finishReason !== "stopped" && run.frames.length > 0 && parts.join("").trim() === "" && this.index === run.frames.length - 1;
    const [before, own, after] = [parts[0].slice(lead), parts[1].slice(Math.max(lead - parts[0].length, 0)), parts[2]];
    const key = JSON.stringify([before, own, after, isEmpty, Boolean(run.around)]);
    if (key === this.answerKey) return; // who selects in it keeps the selection
    this.answerKey = key;
    this.answer.replaceChildren(...(run.around ? [before, make("mark", {}, own), after] : [own]));
    this.answer.hidden = !this.answer.textContent && !isEmpty;
    this.answer.classList.toggle("hollow", isEmpty);
  }

  /** Enable the buttons that make sense now; the others tell why they do not. */
  allow() {
    for (const [{ why }, element] of this.buttons) {
      const reason = why(this);
      element.disabled = reason !== null;
      element.title = reason ?? "";
    }
  }

  /** What is selected of the answer, in its cells or in its text, as {all, from, to}; null if nothing is. */
  get selected() {
    if (!this.run) return null;
    const all = pieces(this.run);
    const cells = selectedElements(this.canvasView.all);
    const text = cells ? null : selectedText(this.answer);
    const lead = this.lead.length;
    const chosen = cells ? piecesOfCells(all, cells.first, cells.last) : text && piecesOfText(all, text.start + lead, text.stop + lead);
    return chosen && { all, ...chosen };
  }

  /** Show in the canvas which cells the selection means. */
  pick() {
    const { selected } = this;
    this.canvasView.pick(selected && { first: selected.all[selected.from].first, last: selected.all[selected.to].last });
  }

  /** Line breaks that the answer begins with: left out where it is shown. */
  get lead() {
    return /^\n*/.exec(this.run.parts.join(""))[0];
  }

  stateText() {
    const { run, index } = this;
    if (run.fault) return "failed";
    if (!run.isOver && index < 0) return "waiting for the first forward";
    const frame = run.frames[index];
    const progress = frame ? `${frame.decided} of ${run.length} decided` : "";
    if (!run.isOver) return progress;
    if (index < run.frames.length - 1) return `after forward ${index + 1} of ${run.frames.length}`;
    const reason = run.around && run.finishReason === "length" ? "the part is full" : REASONS[run.finishReason] ?? run.finishReason ?? "";
    return run.numTokens === null ? reason : `${run.numTokens} token${run.numTokens === 1 ? "" : "s"}, ${reason}`;
  }
}
