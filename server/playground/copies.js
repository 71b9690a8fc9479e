// Texts for the clipboard, always shown as well: browsers give the clipboard to secure pages only.

import { byId } from "./dom.js";

/** Copy a text and show it; the dialog says whether copying worked. */
export async function copyText(title, text) {
  const dialog = byId("copied");
  byId("copied-text").textContent = text;
  byId("copied-again").onclick = () => copyText(title, text);
  const isCopied = await toClipboard(text);
  byId("copied-title").textContent = isCopied ? `${title} — copied` : `${title} — select it to copy`;
  if (!dialog.open) dialog.showModal();
}

async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // not a secure page, or not allowed
  }
}
