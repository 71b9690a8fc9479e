// Every setting as data: its name on the wire, its range, and what it does. `form.js` turns them into controls.

const POLICIES = {
  greedy: "one position per step, the most confident",
  topk: "the k most confident positions per step",
  threshold: "every position above a confidence",
  factor: "as many as a bound on their joint error allows",
  entropy: "as many as a bound on their summed entropy allows",
  margin: "every position that leads its runner-up by enough",
  localleap: "above a confidence, or a lower one near certain positions",
  lopa: "as threshold, along the most certain of several branches; drafts play no part",
};

const ACCEPTANCES = {
  exact: "only states the policy itself would reach: the same text, fewer forwards",
  subset: "drafts whose every token the policy would decide now",
  token: "drafts whose tokens still are the best: fastest, may change the text",
};

const CACHES = {
  none: "compute the whole canvas in every forward; exact",
  prefix: "keep what lies left of the block while it is denoised",
  dual: "keep everything outside the block while it is denoised",
  causal: "keep finished blocks for ever; block-causal and context-causal models only, exact",
};

/** Settings that travel under `psd`. `policies`: read by these only. */
export const DECODER_KNOBS = [
  { name: "policy", kind: "choice", choices: POLICIES, help: "Which positions a step decides." },
  { name: "k", kind: "int", min: 1, max: 1024, policies: ["topk"], help: "Positions decided per step." },
  {
    name: "threshold",
    kind: "number",
    min: 0,
    max: 1,
    step: 0.01,
    policies: ["threshold", "margin", "localleap", "lopa"],
    help: "Confidence, or for margin the lead, that decides a position.",
  },
  {
    name: "factor",
    kind: "number",
    min: 0,
    max: 1000,
    step: 0.1,
    policies: ["factor"],
    help: "Larger decides more at once: n positions need confidence 1 − factor ÷ (n + 1).",
  },
  {
    name: "gamma",
    kind: "number",
    min: 0,
    max: 1000,
    step: 0.05,
    policies: ["entropy"],
    help: "Bound, in nats, on the summed entropy of what is decided together.",
  },
  {
    name: "relaxed_threshold",
    kind: "number",
    min: 0,
    max: 1,
    step: 0.01,
    policies: ["localleap"],
    help: "Confidence that suffices near a certain position.",
  },
  {
    name: "window",
    kind: "int",
    min: 0,
    max: 1024,
    policies: ["localleap"],
    help: "How many positions to each side count as near.",
  },
  {
    name: "branches",
    kind: "int",
    min: 1,
    max: 32,
    policies: ["lopa"],
    help: "Rows that each decide one position more.",
  },
  { name: "block_length", kind: "int", min: 1, max: 1024, help: "Positions denoised together." },
  {
    name: "draft_depth",
    kind: "wordy",
    words: ["auto"],
    min: 0,
    max: 32,
    help: "Drafted states per step; 0 is the policy alone, the word auto chooses for every forward.",
  },
  {
    name: "draft_increment",
    kind: "wordy",
    words: ["policy", "subsets"],
    min: 1,
    max: 1024,
    help: "Positions each draft adds, or the word policy, or subsets: sets of positions that are not nested.",
  },
  { name: "acceptance", kind: "choice", choices: ACCEPTANCES, help: "When a drafted state counts." },
  { name: "cache", kind: "choice", choices: CACHES, help: "What a forward need not compute again." },
  {
    name: "canvas_blocks",
    kind: "int",
    min: 0,
    max: 1_000_000,
    help: "Masked blocks the model sees beyond the active one; empty shows all.",
  },
  {
    name: "edit_threshold",
    kind: "number",
    min: 0,
    max: 1,
    step: 0.01,
    help: "Likelier candidates replace decided tokens of an open block; empty edits nothing.",
  },
  { name: "max_edit_passes", kind: "int", min: 1, max: 1024, help: "Forwards that may edit a full block." },
];

const SAFE = Number.MAX_SAFE_INTEGER; // what a JSON number holds exactly in a browser

/** Settings that stand beside the prompt. `initial`: what a fresh page starts with; `isContext`: the model's context is the limit. */
export const REQUEST_KNOBS = [
  { name: "max_tokens", kind: "int", min: 1, max: 2 ** 31, isContext: true, initial: "64", help: "Longest answer, in tokens." },
  { name: "temperature", kind: "number", min: 0, max: 2, step: 0.1, help: "0 takes the best token; more is freer." },
  { name: "seed", kind: "int", min: -SAFE, max: SAFE, help: "The same seed gives the same text." },
  { name: "top_p", kind: "number", min: 0.01, max: 1, step: 0.01, help: "Sample from the likeliest share only." },
  { name: "top_k", kind: "int", min: -1, max: 2 ** 31, help: "Sample from the k likeliest only; 0 is off." },
  { name: "min_p", kind: "number", min: 0, max: 1, step: 0.01, help: "Drop tokens less likely than this share of the best." },
  { name: "presence_penalty", kind: "number", min: -2, max: 2, step: 0.1, help: "Against tokens the answer holds already." },
  { name: "frequency_penalty", kind: "number", min: -2, max: 2, step: 0.1, help: "The same, per occurrence." },
  { name: "repetition_penalty", kind: "number", min: 0.01, max: 2, step: 0.05, help: "Divides their logits, the prompt's too." },
  { name: "min_tokens", kind: "int", min: 0, max: 2 ** 31, isContext: true, help: "No end of text before so many tokens." },
  { name: "stop", kind: "lines", help: "Ends the answer; one string per line." },
  { name: "ignore_eos", kind: "switch", help: "Go on behind the end of the text." },
];

/** The request's value of what stands in a control, or undefined if it stands empty. Error if it is out of range. */
export function parseKnob(knob, text) {
  if (text === "" || text === undefined || text === false) return undefined;
  switch (knob.kind) {
    case "choice":
      if (!(text in knob.choices)) throw new Error(`${knob.name} must be one of ${Object.keys(knob.choices).join(", ")}`);
      return text;
    case "switch":
      return true;
    case "lines":
      return text.split("\n").filter((line) => line !== "");
    case "wordy":
      return knob.words.includes(text.trim()) ? text.trim() : inRange(knob, text, true);
    case "int":
      return inRange(knob, text, true);
    default:
      return inRange(knob, text, false);
  }
}

/** "0 to 1", as it stands beside the control. */
export function rangeText(knob) {
  if (knob.words) return `${knob.min} to ${knob.max}, or ${knob.words.join(" or ")}`;
  if (knob.max === undefined) return "";
  return `${shown(knob.min)} to ${shown(knob.max)}`;
}

function inRange(knob, text, isWhole) {
  const value = Number(text);
  const what = isWhole ? "a whole number" : "a number";
  if (!Number.isFinite(value) || (isWhole && !Number.isInteger(value)) || value < knob.min || value > knob.max) {
    const other = knob.words ? `, or the word ${knob.words.join(" or ")}` : "";
    throw new Error(`${knob.name} must be ${what} between ${shown(knob.min)} and ${shown(knob.max)}${other}; it is ${text}`);
  }
  return value;
}

/** What stands in an empty control: the value that the server uses, in words where it is null. */
export function ownText(knob, value) {
  if (value === undefined) return "server’s own";
  if (value === null) return { canvas_blocks: "all", edit_threshold: "off", seed: "a new one" }[knob.name] ?? "server’s own";
  return String(value);
}

function shown(value) {
  if (Math.abs(value) === SAFE) return value < 0 ? "−2⁵³" : "2⁵³";
  if (value === 2 ** 31) return "2³¹";
  return value < 0 ? `−${-value}` : String(value);
}
