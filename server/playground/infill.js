// Infilling: a part of the answer becomes masks again, with the text around it on both sides.

/** Whether the server's completions take a suffix, read from its own description. */
export async function hasSuffix(api) {
  const description = await api.json("/openapi.json");
  const operation = description.paths?.["/v1/completions"]?.post;
  const schema = operation?.requestBody?.content?.["application/json"]?.schema;
  return Boolean(schema?.properties?.suffix);
}

/** The selected part of `host`'s text as {before, chosen, after}, or null if nothing of it is selected. */
export function selectedPart(host) {
  const selection = getSelection();
  const node = host.firstChild;
  if (!node || selection.rangeCount === 0) return null;
  const range = selection.getRangeAt(0);
  if (range.collapsed || range.startContainer !== node || range.endContainer !== node) return null;
  const text = node.data;
  // A word's token holds the space before it: a selection that begins at the word means that space too.
  const isAtWord = text[range.startOffset - 1] === " " && text[range.startOffset] !== " ";
  const [start, stop] = [range.startOffset - Number(isAtWord), range.endOffset];
  return { before: text.slice(0, start), chosen: text.slice(start, stop), after: text.slice(stop) };
}

/** How many masks the chosen text makes: as many as it has tokens. */
export async function countTokens(api, text) {
  const { count } = await api.json("/tokenize", { prompt: text, add_special_tokens: false });
  return Math.max(count, 1);
}
