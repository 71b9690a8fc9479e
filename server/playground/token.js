// How a token is written in a cell: everything in it can be seen, and nothing in it acts.

const SPECIAL = /^<[|｜]?[^<>\s]{1,40}[|｜]?>$/u;
const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cn}\p{Co}\p{Cs}]/gu;
const JOINERS = /^[\u200c\u200d]$/u; // they shape scripts and emoji, if there is anything else in the token

/** Write a token into a cell: line breaks and tabs as signs, unseen characters as codes, special tokens short and small. */
export function show(element, text) {
  const isSpecial = SPECIAL.test(text);
  element.classList.toggle("special", isSpecial);
  element.textContent = (isSpecial ? shorten(text) : visible(text.replaceAll("\n", "↵").replaceAll("\t", "⇥"))) || "\u00a0";
}

/** A token as it stands in a tooltip: in quotation marks, with nothing unseen in it. */
export function quoted(text) {
  return visible(JSON.stringify(text));
}

function visible(text) {
  const hasOther = text.replace(UNSEEN, "").trim() !== "";
  return text.replace(UNSEEN, (char) => (hasOther && JOINERS.test(char) ? char : `‹${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`));
}

function shorten(text) {
  const name = text.replace(/[<>|｜]/gu, "");
  return /eos|endoftext|end_of_text/i.test(name) ? "end" : name.slice(0, 8);
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${(share * 100).toFixed(1)} %`;
}
