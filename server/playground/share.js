// Settings in the address: everything but the key and the conversation.

const TEXTS = ["mode", "prompt", "system", "compare", "turns", "model"];
const GROUPS = ["request", "a", "b"];

/** The hash for a state of plain texts; nested groups become "group.name". */
export function toHash(state) {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (typeof value === "object") {
      for (const [inner, text] of Object.entries(value)) pairs.set(`${name}.${inner}`, text === true ? "true" : text);
    } else if (value !== "" && value !== false) {
      pairs.set(name, value === true ? "true" : value);
    }
  }
  return `#${pairs}`;
}

/** The inverse of `toHash`: every text and every group is there, whatever a stranger's link says. Null if it says nothing. */
export function fromHash(hash) {
  const pairs = [...new URLSearchParams(hash.replace(/^#/, ""))];
  if (!pairs.length) return null;
  const state = Object.fromEntries(TEXTS.map((name) => [name, ""]));
  for (const group of GROUPS) state[group] = Object.create(null); // a name like __proto__ is a name like any other
  for (const [name, text] of pairs) {
    const cut = name.indexOf(".");
    if (TEXTS.includes(name)) state[name] = text;
    else if (cut > 0 && GROUPS.includes(name.slice(0, cut))) state[name.slice(0, cut)][name.slice(cut + 1)] = text;
  }
  return state;
}
