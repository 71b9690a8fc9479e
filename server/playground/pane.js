// One run on the page: heading, canvas, bars, numbers and the plain answer.

import { BarsView } from "./bars.js";
import { CanvasView } from "./canvas.js";
import { button, make } from "./dom.js";
import { FiguresView } from "./figures.js";

export class Pane {
  /** `actions`: buttons of the heading as [label, act(pane)] pairs. */
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
    this.answer = make("div", { className: "answer", "aria-label": "Answer" });
    this.buttons = make("div", { className: "actions" }, ...actions.map(([label, act]) => button(label, () => act(this), { className: "quiet", disabled: true })));
    this.element = make(
      "section",
      { className: "pane", "data-pane": name },
      make("header", {}, make("div", { className: "heading" }, this.title, this.state), this.buttons),
      this.fault,
      this.canvasHost,
      this.bars,
      this.figures,
      this.answer,
    );
    this.canvasView = new CanvasView(this.canvasHost, tip);
    this.barsView = new BarsView(this.bars, onSeek);
    this.figuresView = new FiguresView(this.figures);
  }

  /** Show a run from its beginning; null empties the pane. */
  show(run) {
    this.run = run;
    this.index = -1;
    this.canvasView.clear();
    this.title.textContent = run?.label ?? "";
    this.draw();
  }

  /** Draw the run after frame `index`, or after its latest one. */
  draw(index = Infinity) {
    const { run } = this;
    if (!run) return;
    this.index = Math.min(index, run.frames.length - 1);
    const isWhole = this.index === run.frames.length - 1;
    this.canvasView.draw(run, this.index);
    this.barsView.draw(run, this.index);
    this.figuresView.draw(run, this.index);
    this.answer.textContent = isWhole ? run.text.slice(this.lead.length) : "";
    this.answer.hidden = !this.answer.textContent;
    this.fault.textContent = run.fault ?? "";
    this.fault.hidden = !run.fault;
    this.state.textContent = this.stateText();
    this.element.classList.toggle("running", !run.isOver);
    for (const action of this.buttons.children) action.disabled = !run.isOver || !run.frames.length;
  }

  /** Line breaks that the answer begins with: left out where it is shown. */
  get lead() {
    return /^\n*/.exec(this.run.text)[0];
  }

  stateText() {
    const { run, index } = this;
    if (run.fault) return "failed";
    if (!run.isOver && index < 0) return "waiting for the first forward";
    const frame = run.frames[index];
    const progress = frame ? `${frame.decided} of ${run.length} decided` : "";
    if (!run.isOver) return progress;
    if (index < run.frames.length - 1) return `after forward ${index + 1} of ${run.frames.length}`;
    const reasons = { stop: "ended by itself", length: "cut at max_tokens", stopped: "stopped by you" };
    return run.numTokens === null ? reasons[run.finishReason] ?? "" : `${run.numTokens} tokens, ${reasons[run.finishReason] ?? run.finishReason}`;
  }
}
