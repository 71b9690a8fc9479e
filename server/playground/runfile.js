// Saving runs to a file and reading them back.

import { make } from "./dom.js";
import { Run } from "./run.js";

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
  return entries.map((entry) => Run.fromJson(entry));
}
