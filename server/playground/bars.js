// One bar per forward: what the policy, the drafts and a refresh decided upwards, what was rejected downwards.

const SERIES = ["policy", "draft", "refresh"];

/** Draws on a canvas element; a click or a drag on it calls `onSeek` with the index of a forward. */
export class BarsView {
  constructor(element, onSeek) {
    this.element = element;
    this.count = 0;
    const seek = (event) => {
      if (!this.count || !(event.buttons & 1)) return;
      const box = element.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      onSeek(Math.min(Math.max(Math.floor(share * this.count), 0), this.count - 1));
    };
    element.addEventListener("pointerdown", seek);
    element.addEventListener("pointermove", seek);
  }

  /** `scale`: {count, up, down} of the longest and highest run beside it, so that bars of two runs can be compared. */
  draw(run, index, scale = scaleOf([run])) {
    const { element } = this;
    const ratio = devicePixelRatio || 1;
    const width = element.clientWidth;
    const height = element.clientHeight;
    if (!width) return;
    if (element.width !== Math.round(width * ratio) || element.height !== Math.round(height * ratio)) {
      element.width = Math.round(width * ratio);
      element.height = Math.round(height * ratio);
    }
    const pen = element.getContext("2d");
    const style = getComputedStyle(element);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const frames = run.frames;
    const { up, down } = scale;
    const unit = (height - 1) / (up + down);
    const base = Math.round(up * unit);
    const slot = Math.min(width / Math.max(scale.count, 1), 28);
    const gap = slot > 3 ? Math.min(slot * 0.25, 3) : 0;
    this.count = Math.max(scale.count, Math.floor(width / slot));
    frames.forEach((frame, number) => {
      pen.globalAlpha = number <= index ? 1 : 0.28;
      let top = base;
      for (const kind of SERIES) {
        const size = frame[kind] * unit;
        pen.fillStyle = style.getPropertyValue(`--${kind}`);
        pen.fillRect(number * slot, top - size, slot - gap, size);
        top -= size;
      }
      pen.fillStyle = style.getPropertyValue("--rejected");
      pen.fillRect(number * slot, base + 1, slot - gap, frame.rejected * unit);
    });
    pen.globalAlpha = 1;
    pen.fillStyle = style.getPropertyValue("--line");
    pen.fillRect(0, base, width, 1);
  }
}

/** How many bars there are at most, and how far they reach up and down. */
export function scaleOf(runs) {
  const all = runs.flatMap((run) => run.frames);
  const highest = (least, read) => all.reduce((most, frame) => Math.max(most, read(frame)), least);
  return {
    count: Math.max(...runs.map((run) => run.frames.length)),
    up: highest(4, (frame) => frame.policy + frame.draft + frame.refresh),
    down: highest(1, (frame) => frame.rejected),
  };
}
