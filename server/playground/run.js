// One run as a record: what the stream said, frame by frame. Knows no page: canvas, bars and figures read it.

export const FORMAT = "psd-run";
export const VERSION = 1;

/** A run that grows while its chunks come in. Times are milliseconds since it was sent. */
export class Run {
  constructor({ path, body, label }) {
    Object.assign(this, { path, body, label });
    this.frames = []; // {at, canvas, policy, draft, refresh, rejected, decided, depth, denoised}; the latter three add up
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
    frame.depth = (before?.depth ?? 0) + (isDenoise ? Math.max(0, ...depths) : 0);
    frame.denoised = (before?.denoised ?? 0) + (isDenoise ? 1 : 0);
    if (this.starts.at(-1) !== canvas.start) this.starts.push(canvas.start);
    this.blockLength = Math.max(this.blockLength, canvas.token_ids.length);
    this.length = canvas.length;
    this.frames.push(frame);
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

  /** The run as plain data; `fromJson` is the inverse. */
  toJson() {
    const { path, body, label, text, firstTextAt, endedAt, finishReason, usage, figures } = this;
    const frames = this.frames.map(({ at, canvas }) => ({ at, canvas }));
    return { format: FORMAT, version: VERSION, path, body, label, text, firstTextAt, endedAt, finishReason, usage, figures, frames };
  }

  /** Error, in words, for anything that is not a saved run. */
  static fromJson(data) {
    if (data?.format !== FORMAT) throw new Error("This file is not a saved run of the playground.");
    if (data.version !== VERSION) throw new Error(`This run has format version ${data.version}; this page reads version ${VERSION}.`);
    if (!PATHS.includes(data.path) || !isObject(data.body)) throw new Error("The saved run is damaged: its request cannot be read.");
    const run = new Run({ path: data.path, body: data.body, label: String(data.label) });
    if (!Array.isArray(data.frames) || !data.frames.every(isFrame)) throw new Error("The saved run is damaged: a frame of it cannot be read.");
    if (!isUsage(data.usage) || !isFigures(data.figures)) throw new Error("The saved run is damaged: its figures cannot be read.");
    for (const { at, canvas } of data.frames) run.addFrame(canvas, at);
    const { text, firstTextAt, endedAt, finishReason, usage, figures } = data;
    Object.assign(run, { text: String(text), firstTextAt, endedAt, finishReason, usage, figures, isOver: true });
    return run;
  }
}

const PER_POSITION = ["token_ids", "tokens", "candidates", "confidences", "depths"];
const PATHS = ["/v1/completions", "/v1/chat/completions"];
const FIGURES = ["forwards", "tokens_per_forward", "mean_accepted_depth", "decode_seconds"];
const MAX_LENGTH = 2 ** 20;

/** What every entry of a frame's lists must be; null is allowed in each of them. */
const KINDS = { token_ids: Number.isInteger, tokens: isText, candidates: isText, confidences: Number.isFinite, depths: Number.isInteger };
const COUNTS = ["start", "forwards", "steps", "drafted", "accepted", "length"];

function isText(value) {
  return typeof value === "string";
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isUsage(usage) {
  if (usage === null || usage === undefined) return true;
  const count = usage.completion_tokens;
  return Number.isInteger(count) && count >= 0 && count <= MAX_LENGTH;
}

function isFigures(figures) {
  return figures === null || figures === undefined || FIGURES.every((name) => Number.isFinite(figures[name]));
}

function isFrame(frame) {
  const canvas = frame?.canvas;
  if (typeof frame?.at !== "number" || !canvas || !Array.isArray(canvas.rejected)) return false;
  const width = canvas.token_ids?.length;
  const hasCounts = COUNTS.every((name) => Number.isInteger(canvas[name]) && canvas[name] >= 0);
  const isEntry = (name) => (value) => value === null || KINDS[name](value);
  const hasPositions = PER_POSITION.every(
    (name) => Array.isArray(canvas[name]) && canvas[name].length === width && canvas[name].every(isEntry(name)),
  );
  const isInside = width > 0 && canvas.start + width <= canvas.length && canvas.length <= MAX_LENGTH;
  return hasCounts && hasPositions && isInside && canvas.rejected.every(Number.isInteger);
}
