// Decoder settings with a name, as the texts that stand in the controls.

/** The first one is what a fresh page starts with: its drafts can be seen at work on any model. */
export const PRESETS = [
  { name: "Greedy + drafts", texts: { policy: "greedy", draft_depth: "3" } },
  { name: "Greedy alone", texts: { policy: "greedy", draft_depth: "0" } },
  { name: "Server’s own", texts: {} },
];

/** Whether a preset's texts are just what stands in the controls. */
export function isSame(texts, preset) {
  const names = new Set([...Object.keys(texts), ...Object.keys(preset.texts)]);
  return [...names].every((name) => texts[name] === preset.texts[name]);
}
