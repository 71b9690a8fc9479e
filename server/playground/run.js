// One run as a record: what the stream said, frame by frame. Knows no page: canvas, bars and figures read it.

export const FORMAT = "psd-run";
export const VERSION = 1;

/**
 * A run that grows while its chunks come in. Times are milliseconds since it was sent.
 * `around`: of a run that fills a part of an answer again, {prompt, suffix, before, after}: what the first request was, and
 * the pieces of the answer that stay.
 */
export class Run {
  constructor({ path, body, label, around = null }) {
    Object.assign(this, { path, body, label, around });
    this.frames = []; // {at, canvas, policy, draft, refresh, rejected, decided, byDraft, depth, denoised}; the latter four add up
    this.cells = []; // per position: undefined while undecided, then {id, text, confidence, kind, depth, step, forward, frame, before}
    this.starts = []; // first position of every block seen so far
    this.blockLength = 0;
    this.length = 0;
    this.text = "";
    this.firstTextAt = null;
    this.endedAt = null;
    this.finishReason = null;
    this.usage = null;
    this.figures = null;
    this.fault = null;
    this.isOver = false;
  }

  /** Take one chunk of the stream. */
  take(chunk, at) {
    const canvas = chunk.psd?.canvas;
    if (canvas) this.addFrame(canvas, at);
    else if (chunk.psd) this.figures = chunk.psd;
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const text = choice.text ?? choice.delta?.content ?? "";
    if (text && this.firstTextAt === null) this.firstTextAt = at;
    this.text += text;
    if (choice.finish_reason) this.finishReason = choice.finish_reason;
  }

  /** Nothing will come any more; `fault` says why, if it ended badly. */
  end(at, fault = null) {
    Object.assign(this, { endedAt: at, fault, isOver: true });
  }

  addFrame(canvas, at) {
    const before = this.frames.at(-1);
    const frame = { at, canvas, policy: 0, draft: 0, refresh: 0, rejected: canvas.drafted - canvas.accepted };
    const fresh = [];
    canvas.token_ids.forEach((id, offset) => {
      if (id !== null && this.cells[canvas.start + offset]?.id !== id) fresh.push(offset); // decided, or edited
    });
    const depths = [...new Set(fresh.map((offset) => canvas.depths[offset]))].filter((depth) => depth > 0).sort((a, b) => a - b);
    const stepsBefore = before?.canvas.steps ?? 0;
    for (const offset of fresh) {
      const depth = canvas.depths[offset];
      const kind = depth > 0 ? "draft" : canvas.phase === "refresh" ? "refresh" : "policy";
      frame[kind] += 1;
      this.cells[canvas.start + offset] = {
        id: canvas.token_ids[offset],
        text: canvas.tokens[offset],
        confidence: canvas.confidences[offset],
        kind,
        depth,
        step: depth > 0 ? stepsBefore + 1 + depths.indexOf(depth) : canvas.steps,
        forward: canvas.forwards,
        frame: this.frames.length,
        before: this.cells[canvas.start + offset],
      };
    }
    const isDenoise = canvas.phase === "denoise";
    frame.decided = (before?.decided ?? 0) + fresh.filter((offset) => !this.cells[canvas.start + offset].before).length;
    frame.byDraft = (before?.byDraft ?? 0) + frame.draft;
    frame.depth = (before?.depth ?? 0) + (isDenoise ? Math.max(0, ...depths) : 0);
    frame.denoised = (before?.denoised ?? 0) + (isDenoise ? 1 : 0);
    if (this.starts.at(-1) !== canvas.start) this.starts.push(canvas.start);
    this.blockLength = Math.max(this.blockLength, canvas.token_ids.length);
    this.length = canvas.length;
    this.frames.push(frame);
  }

  /** The answer with what was kept around it: [before, own, after]. */
  get parts() {
    const joined = (pieces) => pieces.map((piece) => piece.text).join("");
    return this.around ? [joined(this.around.before), this.text, joined(this.around.after)] : ["", this.text, ""];
  }

  /** Tokens of the answer, end token included; null until the server has said so. */
  get numTokens() {
    return this.usage?.completion_tokens ?? null;
  }

  /** First position of every block, the coming ones included. */
  blockStarts() {
    const starts = [...this.starts];
    const last = this.frames.at(-1)?.canvas;
    if (!last) return starts;
    for (let next = last.start + last.token_ids.length; next < this.length; next += this.blockLength) starts.push(next);
    return starts;
  }

  /** What stood at a position in a frame; undefined if it was undecided. An edited token has others before it. */
  cellAt(position, index) {
    let cell = this.cells[position];
    while (cell && cell.frame > index) cell = cell.before;
    return cell;
  }

  /** Index of the last frame that had come by `at` milliseconds, or -1. */
  frameAt(at) {
    let low = 0;
    let high = this.frames.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.frames[middle].at <= at) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** The run as plain data; `fromJson` of runfile.js is the inverse. */
  toJson() {
    const { path, body, label, around, text, firstTextAt, endedAt, finishReason, usage, figures, fault } = this;
    const frames = this.frames.map(({ at, canvas }) => ({ at, canvas }));
    return { format: FORMAT, version: VERSION, path, body, label, around, text, firstTextAt, endedAt, finishReason, usage, figures, fault, frames };
  }
}
