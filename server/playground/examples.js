// Prompts to begin with: [what it is, prompt].

/** For the built-in model: problems of the kinds it was trained on, from its own list of held-out ones. */
const BUILT_IN = [
  ["Story", "Write a story about Bruno and a blue horse."],
  ["Sum", "Victor has 5 lemons. Victor gets 8 from Diana. How many lemons does Victor have now?"],
  ["JSON", "Write as JSON: Greta is 21 years old and lives in Quito. Greta has worked as a pilot for 19 years."],
  ["Code", 'def count_greater(numbers):\n    """Return how many numbers are greater than 6."""\n'],
  ["Note", "Write a note from Karl to Emma about the meeting on Sunday."],
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
