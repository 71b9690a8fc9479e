// Walking through the cells of a canvas with the keyboard, and selecting some of them.

/** Arrow keys, Home and End walk; with Shift they select, and the space bar selects the cell it stands on. */
export class CellWalk {
  constructor(host, describe) {
    this.describe = describe;
    this.cells = [];
    this.entry = null; // the one that the tab key reaches
    this.anchor = null; // where a selection began
    host.addEventListener("keydown", (event) => this.move(event));
  }

  /** The cells from now on; the first one can be reached by the tab key. */
  follow(cells) {
    this.cells = cells;
    this.anchor = null;
    this.enter(cells[0] ?? null);
  }

  enter(cell) {
    if (this.entry) this.entry.tabIndex = -1;
    this.entry = cell;
    if (cell) cell.tabIndex = 0;
  }

  move(event) {
    const from = event.target.closest(".cell");
    if (!from) return;
    if (event.key === " ") {
      event.preventDefault();
      this.anchor = from;
      select(from, from);
      return;
    }
    const order = Number(from.dataset.order);
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key] ?? this.lineStep(event.key, order);
    if (!step) return;
    event.preventDefault();
    const target = this.cells[Math.min(Math.max(order + step, 0), this.cells.length - 1)];
    this.enter(target);
    target.setAttribute("aria-label", this.describe(target).map(([name, value]) => `${name} ${value}`).join(", "));
    target.focus();
    if (!event.shiftKey && this.anchor) getSelection().removeAllRanges();
    this.anchor = event.shiftKey ? (this.anchor ?? from) : null;
    if (this.anchor) select(this.anchor, target);
  }

  /** Cells between this one and the one above or below it. */
  lineStep(key, order) {
    if (key !== "ArrowUp" && key !== "ArrowDown") return 0;
    const from = this.cells[order];
    const direction = key === "ArrowDown" ? 1 : -1;
    for (let next = order + direction; this.cells[next]; next += direction) {
      const cell = this.cells[next];
      const isOtherLine = Math.abs(cell.offsetTop - from.offsetTop) > 4;
      const isUnder = direction > 0 ? cell.offsetLeft + cell.offsetWidth > from.offsetLeft : cell.offsetLeft <= from.offsetLeft;
      if (isOtherLine && isUnder) return next - order;
    }
    return 0;
  }
}

function select(a, b) {
  const [first, last] = Number(a.dataset.order) <= Number(b.dataset.order) ? [a, b] : [b, a];
  getSelection().setBaseAndExtent(first, 0, last, last.childNodes.length);
}
