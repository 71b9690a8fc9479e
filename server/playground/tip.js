// The one tooltip of the page: a small table beside a cell.

import { byId, make } from "./dom.js";

export class Tip {
  constructor() {
    this.host = byId("tip");
  }

  /** Show [name, value] pairs at an element, where there is room. */
  show(element, pairs) {
    this.host.replaceChildren(...pairs.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
    this.host.hidden = false;
    const cell = element.getBoundingClientRect();
    const own = this.host.getBoundingClientRect();
    const left = Math.min(Math.max(cell.left, 8), innerWidth - own.width - 8);
    const isAbove = cell.bottom + own.height + 14 > innerHeight;
    this.host.style.setProperty("left", `${Math.max(left, 8)}px`);
    this.host.style.setProperty("top", `${isAbove ? cell.top - own.height - 8 : cell.bottom + 8}px`);
  }

  hide() {
    this.host.hidden = true;
  }
}
