// Light, dark, or what the system says. The choice is kept in the browser.

import { byId } from "./dom.js";

const ORDER = ["auto", "light", "dark"];
const KEPT = "psd-theme";

export function setUpTheme(onChange) {
  const toggle = byId("theme");
  const apply = (name) => {
    document.documentElement.dataset.theme = name;
    toggle.textContent = { auto: "Auto", light: "Light", dark: "Dark" }[name];
    toggle.setAttribute("aria-label", `Colours: ${name}`);
    onChange();
  };
  toggle.addEventListener("click", () => {
    const next = ORDER[(ORDER.indexOf(document.documentElement.dataset.theme) + 1) % ORDER.length];
    keep(next);
    apply(next);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
  apply(kept());
}

function kept() {
  try {
    const name = localStorage.getItem(KEPT);
    return ORDER.includes(name) ? name : "auto";
  } catch {
    return "auto"; // storage may be forbidden
  }
}

function keep(name) {
  try {
    localStorage.setItem(KEPT, name);
  } catch {
    // then it lasts as long as the page
  }
}
