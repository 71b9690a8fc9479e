// Prompts to begin with: [what it is, prompt].

/** For the built-in model: problems of the kinds it was trained on, from its own list of held-out ones. */
const BUILT_IN = [
  ["Note", "Write a note from George to Oscar about the party on Saturday."],
  ["JSON", "Write as JSON: Tina is 54 years old and lives in Porto."],
  ["Sort", "Sort these numbers: 7, 9, 4."],
  ["Code", 'def backwards(numbers):\n    """Return numbers reversed."""\n'],
  ["Subtract", "Karl has 7 keys and sells 2 of them to Felix. How many keys are left for Karl?"],
];

const GENERAL = [
  ["Note", "Write a short note from George to Oscar about the party on Saturday."],
  ["JSON", "Write as JSON: Tina is 54 years old and lives in Porto."],
  ["Explain", "Explain in three sentences why the sky is blue."],
  ["Code", "Write a Python function that returns the prime numbers below n."],
];

export const FIRST_PROMPT = BUILT_IN[0][1];

/** Examples for a model of this card; null: no card has come yet. */
export function examplesFor(card) {
  return card && !card.psd?.is_built_in ? GENERAL : BUILT_IN;
}
