// Building and finding elements. Text is always text: nothing here ever parses markup.

/** The element with this id; a missing one is our own fault. */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element #${id}`);
  return found;
}

/** A new element. Properties are set on the object, data-*, aria-* and role as attributes; null children are left out. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.includes("-") || name === "role" || name === "for" || name === "list") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A button that calls `act`; the label is its text. */
export function button(label, act, properties = {}) {
  const element = make("button", { type: "button", ...properties }, label);
  element.addEventListener("click", act);
  return element;
}

/** At most one call of `draw` per frame of the screen, with whatever state there is by then. */
export function perFrame(draw) {
  let isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      draw();
    });
  };
}
