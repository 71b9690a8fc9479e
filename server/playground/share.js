// Settings in the address: everything but the key and the conversation.

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

/** The inverse of `toHash`; null if the hash is empty. */
export function fromHash(hash) {
  const pairs = [...new URLSearchParams(hash.replace(/^#/, ""))];
  if (!pairs.length) return null;
  const state = Object.create(null); // a name like __proto__ is a name like any other
  for (const [name, text] of pairs) {
    const [group, inner] = name.split(".");
    if (inner === undefined) state[group] = text;
    else if (typeof state[group] !== "string") (state[group] ??= Object.create(null))[inner] = text;
  }
  return state;
}
