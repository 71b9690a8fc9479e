// Saving runs to a file and reading them back. A file may come from a stranger: nothing in it is taken on trust.

import { make } from "./dom.js";
import { FORMAT, Run, VERSION } from "./run.js";

const PATHS = ["/v1/completions", "/v1/chat/completions"];
const FIGURES = ["forwards", "rows", "tokens_per_forward", "mean_accepted_depth", "decode_seconds"];
const MAX_LENGTH = 2 ** 15; // cells that a browser still draws
const MAX_FRAMES = 2 ** 16;

/** What every entry of a frame's lists must be; null is allowed in each of them. */
const KINDS = { token_ids: Number.isInteger, tokens: isText, candidates: isText, confidences: isShare, depths: isCount };
const COUNTS = ["start", "forwards", "steps", "drafted", "accepted", "length"];

/** Offer the runs as one JSON file. */
export function download(runs, name) {
  const blob = new Blob([JSON.stringify(runs.map((run) => run.toJson()))], { type: "application/json" });
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** One run or two from a file. Error, in words, if it holds anything else. */
export async function read(file) {
  let data;
  try {
    data = JSON.parse(await file.text());
  } catch {
    throw new Error("This file is not JSON.");
  }
  const entries = Array.isArray(data) ? data : [data];
  if (entries.length < 1 || entries.length > 2) throw new Error(`A file holds one run or two, this one ${entries.length}.`);
  return entries.map(fromJson);
}

/** Error, in words, for anything that is not a saved run. */
export function fromJson(data) {
  if (!isObject(data) || data.format !== FORMAT) throw new Error("This file is not a saved run of the playground.");
  if (data.version !== VERSION) throw new Error(`This page reads format version ${VERSION}, the run has ${JSON.stringify(data.version)}.`);
  const damaged = (what) => new Error(`The saved run is damaged: ${what} cannot be read.`);
  const { text, label, firstTextAt, endedAt, finishReason, usage, figures, fault, around } = data;
  if (!PATHS.includes(data.path) || !isObject(data.body)) throw damaged("its request");
  if (!isText(text) || !isText(label) || !isMissingOr(isText, finishReason) || !isMissingOr(isText, fault)) throw damaged("its text");
  if (!isMissingOr(isTime, firstTextAt) || !isMissingOr(isTime, endedAt)) throw damaged("its time");
  if (!Array.isArray(data.frames) || data.frames.length > MAX_FRAMES || !areFrames(data.frames)) throw damaged("a frame of it");
  if (!isMissingOr(isUsage, usage) || !isMissingOr(isFigures, figures)) throw damaged("its figures");
  if (!isMissingOr(isAround, around)) throw damaged("what stands around it");
  const run = new Run({ path: data.path, body: data.body, label, around: around ?? null });
  for (const { at, canvas } of data.frames) run.addFrame(canvas, at);
  const rest = { firstTextAt, endedAt, finishReason, usage, figures, fault };
  for (const [name, value] of Object.entries(rest)) rest[name] = value ?? null;
  return Object.assign(run, rest, { text, isOver: true });
}

function isText(value) {
  return typeof value === "string";
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isMissingOr(isKind, value) {
  return value === null || value === undefined || isKind(value);
}

function isTime(value) {
  return Number.isFinite(value) && value >= 0;
}

function isCount(value) {
  return Number.isInteger(value) && value >= 0 && value <= MAX_LENGTH;
}

function isShare(value) {
  return Number.isFinite(value) && value >= 0 && value <= 1;
}

function isUsage(usage) {
  return isObject(usage) && isCount(usage.completion_tokens);
}

function isFigures(figures) {
  return isObject(figures) && FIGURES.every((name) => isTime(figures[name]));
}

function isAround(around) {
  const isPieces = (list) => Array.isArray(list) && list.length <= MAX_LENGTH && list.every((piece) => isText(piece?.text) && isCount(piece.size));
  return isObject(around) && isText(around.prompt) && isText(around.suffix) && isPieces(around.before) && isPieces(around.after);
}

/** Whether all are frames of one canvas, whose blocks come one after the other. */
function areFrames(frames) {
  return frames.every((frame, number) => {
    if (!isFrame(frame)) return false;
    const before = frames[number - 1]?.canvas;
    const { canvas } = frame;
    if (!before) return true;
    const isSameBlock = canvas.start === before.start && canvas.token_ids.length === before.token_ids.length;
    return canvas.length === before.length && (isSameBlock || canvas.start >= before.start + before.token_ids.length);
  });
}

function isFrame(frame) {
  const canvas = frame?.canvas;
  if (!isTime(frame?.at) || !isObject(canvas) || !Array.isArray(canvas.token_ids) || !Array.isArray(canvas.rejected)) return false;
  const width = canvas.token_ids.length;
  const isEntry = (name) => (value) => value === null || KINDS[name](value);
  const hasPositions = Object.keys(KINDS).every(
    (name) => Array.isArray(canvas[name]) && canvas[name].length === width && canvas[name].every(isEntry(name)),
  );
  const isWhole = (offset) => ["tokens", "confidences", "depths"].every((name) => canvas[name][offset] !== null);
  return (
    COUNTS.every((name) => isCount(canvas[name])) &&
    hasPositions &&
    canvas.token_ids.every((id, offset) => id === null || isWhole(offset)) &&
    width > 0 &&
    canvas.start + width <= canvas.length &&
    canvas.rejected.every(isCount)
  );
}
