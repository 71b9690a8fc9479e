// The one tooltip of the page: a small table beside a cell.

import { byId, make } from "./dom.js";

export class Tip {
  constructor() {
    this.host = byId("tip");
    this.element = null;
    this.describe = null;
    addEventListener("scroll", () => this.refresh(), { capture: true, passive: true });
  }

  /** Show at an element, where there is room, the [name, value] pairs that `describe` gives, now and on `refresh`. */
  show(element, describe) {
    Object.assign(this, { element, describe });
    this.refresh();
  }

  /** What is described has changed, or its place. */
  refresh() {
    if (!this.element) return;
    if (!this.element.isConnected) {
      this.hide();
      return;
    }
    this.host.replaceChildren(...this.describe().flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
    this.host.hidden = false;
    const cell = this.element.getBoundingClientRect();
    const own = this.host.getBoundingClientRect();
    const left = Math.min(Math.max(cell.left, 8), innerWidth - own.width - 8);
    const isAbove = cell.bottom + own.height + 14 > innerHeight;
    this.host.style.setProperty("left", `${Math.max(left, 8)}px`);
    this.host.style.setProperty("top", `${isAbove ? Math.max(cell.top - own.height - 8, 8) : cell.bottom + 8}px`);
  }

  hide() {
    this.element = null;
    this.host.hidden = true;
  }
}
