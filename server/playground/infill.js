// Infilling: a part of an answer becomes masks again, between the text that stands on both sides of it.
//
// An answer is a row of pieces: {text, size, first, last}. Their texts joined are the answer, `size` is how many tokens
// a piece stands for, `first` and `last` are the cells that show it, counted over the whole canvas. A piece is one token,
// but for characters that several tokens share: those cannot be taken apart.

const SLACK = 8; // characters that one token may stand for without its own text telling them

/** The pieces of a run's answer, the parts kept around a refill included. */
export function pieces(run) {
  const { before = [], after = [] } = run.around ?? {};
  const kept = (list, from) => list.map(({ text, size }, number) => ({ text, size, first: from + number, last: from + number }));
  const tokens = run.cells.slice(0, run.numTokens ?? run.length).map((cell) => cell?.text ?? "");
  const own = align(tokens, run.text).map(({ text, first, last }) => {
    return { text, size: last - first + 1, first: before.length + first, last: before.length + last };
  });
  return [...kept(before, 0), ...own, ...kept(after, before.length + run.length)];
}

/** Cuts a text at its tokens: [{text, first, last}]. Tokens without any text, like the end of the text, are left out. */
export function align(tokens, text) {
  const cuts = [];
  let at = 0;
  for (let first = 0; first < tokens.length && at < text.length; ) {
    const { next, stop } = place(tokens, text, first, at);
    if (stop > at) cuts.push({ text: text.slice(at, stop), first, last: next - 1 });
    at = stop;
    first = next;
  }
  if (at < text.length && cuts.length) cuts.at(-1).text += text.slice(at);
  return cuts;
}

/** Where the token `first` ends in the text, or, if its text does not stand there, those up to `next` together. */
function place(tokens, text, first, at) {
  const token = tokens[first];
  if (token && text.startsWith(token, at)) return { next: first + 1, stop: at + token.length };
  if (token && text[at] === " " && text.startsWith(token, at + 1)) return { next: first + 1, stop: at + 1 + token.length };
  for (let next = first + 1; next < tokens.length; next++) {
    const found = tokens[next] && !tokens[next].includes("\ufffd") ? text.indexOf(tokens[next], at) : -1;
    if (found >= at && found - at <= (next - first) * SLACK) return { next, stop: found };
  }
  return { next: tokens.length, stop: text.length };
}

/** The pieces from one cell to another as {from, to}, indices into `all`; null if none of them has text. */
export function piecesOfCells(all, first, last) {
  return span(all, (piece) => piece.last >= first && piece.first <= last);
}

/** The same from one character of the answer to another. Blanks at its end mean no word behind them. */
export function piecesOfText(all, start, stop) {
  const text = all.map((piece) => piece.text).join("");
  const chosen = text.slice(start, stop);
  const end = chosen.trim() ? start + chosen.trimEnd().length : stop;
  let at = 0;
  const starts = all.map((piece) => (at += piece.text.length) - piece.text.length);
  return span(all, (piece, number) => starts[number] < end && starts[number] + piece.text.length > start);
}

function span(all, isChosen) {
  const from = all.findIndex(isChosen);
  return from < 0 ? null : { from, to: all.findLastIndex(isChosen) };
}

/** The run that fills these pieces again, as many masks as they had tokens. `settings`: a body's other fields, as they are set now. */
export function refill(run, { all, from, to }, settings) {
  const prompt = run.around?.prompt ?? run.body.prompt;
  const suffix = run.around?.suffix ?? run.body.suffix ?? "";
  const [before, chosen, after] = [all.slice(0, from), all.slice(from, to + 1), all.slice(to + 1)].map(plain);
  const count = chosen.reduce((sum, piece) => sum + piece.size, 0);
  const { stop, ignore_eos, ...rest } = settings; // both could leave masks unfilled
  const body = { ...rest, prompt: prompt + joined(before), suffix: joined(after) + suffix, max_tokens: count, min_tokens: count };
  return { path: run.path, body, around: { prompt, suffix, before, after }, label: `${count} token${count === 1 ? "" : "s"} filled again` };
}

/** Why this run's answer cannot be filled again; null if it can. */
export function hindrance(run) {
  if (!run) return "There is no answer yet.";
  if (!run.path.endsWith("/v1/completions")) return "Chats take no suffix: only the answer of a completion can be filled again.";
  if (!run.parts.join("")) return "The answer is empty.";
  if (typeof run.body.prompt !== "string") return "The prompt of this run is no text.";
  if (run.fault || run.numTokens === null) return "The answer is not complete.";
  return null;
}

function plain(list) {
  return list.map(({ text, size }) => ({ text, size }));
}

function joined(list) {
  return list.map((piece) => piece.text).join("");
}
