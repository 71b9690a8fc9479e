// The transport: play, pause, scrub and step through the forwards of one run or of two at once.

import { byId } from "./dom.js";

/** Owns the position. `onSeek(index, at)` draws it: `at` is set where the clock of the run counts, not its forwards. */
export class Replay {
  constructor(onSeek) {
    this.onSeek = onSeek;
    this.runs = [];
    this.index = -1;
    this.isPlaying = false;
    this.slider = byId("scrub");
    this.output = byId("scrub-at");
    this.speed = byId("speed");
    this.playButton = byId("play");
    this.slider.addEventListener("input", () => this.seek(Number(this.slider.value) - 1));
    byId("first").addEventListener("click", () => this.seek(-1));
    byId("back").addEventListener("click", () => this.seek(this.index - 1));
    byId("forth").addEventListener("click", () => this.seek(this.index + 1));
    byId("last").addEventListener("click", () => this.seek(this.count - 1));
    this.playButton.addEventListener("click", () => (this.isPlaying ? this.pause() : this.play()));
    this.follow([]);
  }

  get count() {
    return Math.max(0, ...this.runs.map((run) => run.frames.length));
  }

  /** Follow these runs: the position stays at their latest forward until somebody seeks. */
  follow(runs) {
    this.pause();
    this.runs = runs;
    this.index = this.count - 1;
    this.refresh();
  }

  /** Redraw the controls: runs have grown or ended. */
  refresh() {
    const isOver = this.runs.length > 0 && this.runs.every((run) => run.isOver);
    if (!isOver) this.index = this.count - 1;
    const isReady = isOver && this.count > 0;
    for (const control of byId("transport").querySelectorAll("button, input, select")) control.disabled = !isReady;
    this.slider.max = String(this.count);
    this.slider.value = String(this.index + 1);
    this.output.textContent = `${this.index + 1} / ${this.count}`;
    this.slider.setAttribute("aria-valuetext", `after forward ${this.index + 1} of ${this.count}`);
  }

  seek(index) {
    this.pause();
    this.go(index);
  }

  play() {
    if (this.index >= this.count - 1) this.go(-1);
    this.isPlaying = true;
    this.playButton.textContent = "Pause";
    let before = null;
    let clock = this.speed.value === "real" ? this.clockAt(this.index) : this.index;
    const tick = (now) => {
      if (!this.isPlaying) return;
      const passed = before === null ? 0 : now - before;
      before = now;
      const isReal = this.speed.value === "real";
      clock += isReal ? passed : (passed / 1000) * Number(this.speed.value);
      const index = isReal ? Math.max(...this.runs.map((run) => run.frameAt(clock))) : Math.floor(clock);
      this.go(index, isReal ? clock : undefined);
      if (this.index >= this.count - 1 && (!isReal || clock >= this.clockAt(this.count - 1))) this.pause();
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  pause() {
    this.isPlaying = false;
    this.playButton.textContent = "Play";
  }

  go(index, at) {
    this.index = Math.min(Math.max(index, -1), this.count - 1);
    this.onSeek(this.index, at);
    this.refresh();
  }

  /** When the slowest run had reached frame `index`, in milliseconds. */
  clockAt(index) {
    return index < 0 ? 0 : Math.max(0, ...this.runs.map((run) => run.frames[Math.min(index, run.frames.length - 1)]?.at ?? 0));
  }
}
