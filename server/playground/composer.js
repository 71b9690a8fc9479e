// The controls: prompt, mode, model and settings. Gives requests; reads the address and writes it.

import { byId, button } from "./dom.js";
import { examplesFor, FIRST_PROMPT } from "./examples.js";
import { KnobForm } from "./form.js";
import { DECODER_KNOBS, REQUEST_KNOBS } from "./knobs.js";
import { isSame, PRESETS } from "./presets.js";
import { buildRequest } from "./request.js";
import { fromHash, toHash } from "./share.js";

export class Composer {
  /** `onArrange`: another mode, or one decoder more or less. `onMissing(name)`: the wanted model is not served here. */
  constructor({ onArrange, onMissing }) {
    this.onArrange = onArrange;
    this.onMissing = onMissing;
    this.cards = [];
    this.wantedModel = "";
    this.hasLooked = false; // at a comparison: its other side has settings then
    const onChange = () => this.remember();
    const host = byId("decoder-knobs");
    this.request = new KnobForm(byId("request-knobs"), "request", REQUEST_KNOBS, onChange);
    this.decoders = [new KnobForm(host, "a", DECODER_KNOBS, onChange)];
    this.decoders.push(new KnobForm(host, "b", DECODER_KNOBS, onChange, this.decoders[0]));
    this.presets = this.decoders.map((form) => this.presetButtons(form));
    this.listen();
  }

  get mode() {
    return document.querySelector("input[name=mode]:checked").value;
  }

  get isCompare() {
    return byId("compare").checked;
  }

  set isCompare(isCompare) {
    byId("compare").checked = isCompare;
    this.arrange();
  }

  get isOneByOne() {
    return this.isCompare && byId("one-by-one").checked;
  }

  get prompt() {
    return byId("prompt").value;
  }

  set prompt(prompt) {
    byId("prompt").value = prompt;
    this.remember();
  }

  listen() {
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault(); // its address would be taken for settings
      byId("prompt").focus();
    });
    for (const id of ["prompt", "system"]) byId(id).addEventListener("input", () => this.remember());
    byId("one-by-one").addEventListener("change", () => this.remember());
    byId("compare").addEventListener("change", () => {
      if (this.isCompare && !this.hasLooked) this.decoders[1].texts = PRESETS[1].texts;
      this.arrange();
    });
    for (const radio of document.querySelectorAll("input[name=mode]")) radio.addEventListener("change", () => this.arrange());
    byId("model").addEventListener("change", () => {
      this.wantedModel = byId("model").value;
      this.showCard();
      this.remember();
    });
    addEventListener("hashchange", () => this.recall());
  }

  presetButtons(form) {
    const buttons = PRESETS.map(({ name, texts }) =>
      button(name, () => {
        form.texts = texts;
        this.remember();
      }, { className: "chip" }),
    );
    byId(`presets-${form.side}`).append(...buttons);
    return buttons;
  }

  /** The models that are served, as /v1/models has them. */
  setModels(cards) {
    this.cards = cards;
    const isServed = cards.some(({ id }) => id === this.wantedModel);
    if (this.wantedModel && !isServed) {
      this.onMissing(this.wantedModel);
      this.wantedModel = "";
    }
    byId("model").replaceChildren(...cards.map(({ id }) => new Option(id, id, false, id === this.wantedModel)));
    this.showCard();
    this.remember();
  }

  get card() {
    return this.cards.find(({ id }) => id === byId("model").value) ?? null;
  }

  /** Show what the chosen model's card says: the server's own settings, the context, prompts to begin with. */
  showCard() {
    const { card } = this;
    const own = card?.psd ?? {};
    const limit = own.max_tokens?.[this.mode === "chat" ? "chat" : "completions"];
    const texts = { ...this.defaults, max_tokens: this.mode === "chat" && limit ? `up to ${limit}` : limit, seed: own.seed };
    this.request.showOwn(texts, card?.max_model_len);
    for (const form of this.decoders) form.showOwn(own.decoder ?? {});
    const chips = examplesFor(card).map(([name, prompt]) => button(name, () => this.take(prompt), { className: "chip", title: prompt }));
    byId("examples").replaceChildren(...chips);
  }

  /** Defaults of the request's fields, as the API's own description tells them. */
  setDefaults(schema) {
    const entries = Object.entries(schema?.properties ?? {}).filter(([, field]) => field.default !== null);
    this.defaults = Object.fromEntries(entries.map(([name, field]) => [name, field.default]));
    this.showCard();
  }

  take(prompt) {
    this.prompt = prompt;
    byId("prompt").focus();
  }

  /** Show what belongs to the chosen mode. */
  arrange() {
    const isChat = this.mode === "chat";
    byId("system-row").hidden = !isChat;
    byId("fresh").hidden = !isChat;
    byId("turns-row").hidden = !this.isCompare;
    byId("settings").classList.toggle("two", this.isCompare);
    byId("decoder-title").textContent = this.isCompare ? "Decoders A and B" : "Decoder";
    this.hasLooked ||= this.isCompare;
    this.showCard();
    this.remember();
    this.onArrange();
  }

  /** Write the settings to the address; never the key. */
  remember() {
    this.presets.forEach((buttons, side) => {
      buttons.forEach((chip, number) => chip.setAttribute("aria-pressed", isSame(this.decoders[side].texts, PRESETS[number])));
    });
    const state = {
      mode: this.mode,
      prompt: this.prompt,
      system: byId("system").value,
      compare: this.isCompare,
      turns: byId("one-by-one").checked,
      model: this.wantedModel,
      request: this.request.texts,
      a: this.decoders[0].texts,
      b: this.isCompare ? this.decoders[1].texts : {},
    };
    history.replaceState(null, "", toHash(state));
  }

  /** Read the settings from the address. */
  recall() {
    const state = fromHash(location.hash);
    if (state) {
      document.querySelector(`input[name=mode][value=${state.mode === "chat" ? "chat" : "completion"}]`).checked = true;
      byId("prompt").value = state.prompt;
      byId("system").value = state.system;
      byId("compare").checked = state.compare === "true";
      byId("one-by-one").checked = state.turns === "true";
      this.wantedModel = state.model;
      this.request.texts = state.request;
      this.decoders[0].texts = state.a;
      this.decoders[1].texts = state.b;
      this.hasLooked = this.isCompare;
    } else {
      byId("prompt").value = FIRST_PROMPT;
      this.decoders[0].texts = PRESETS[0].texts;
    }
    if (this.cards.length) this.setModels(this.cards);
    this.arrange();
  }

  /** One request per side, with the same seed. Error, in words, if a control is out of range. */
  requests(turns) {
    const request = this.request.values();
    if (this.isCompare && request.temperature && request.seed === undefined) request.seed = Math.floor(Math.random() * 2 ** 31);
    const sides = this.isCompare ? this.decoders : this.decoders.slice(0, 1);
    const [model, system] = [byId("model").value, byId("system").value.trim()];
    return sides.map((form) => buildRequest({ model, mode: this.mode, prompt: this.prompt, system, turns, decoder: form.values(), request }));
  }

  /** The fields of a completion of this side but its prompt. Error, in words, if a control is out of range. */
  settings(side) {
    const decoder = this.decoders[this.isCompare ? side : 0].values();
    const { body } = buildRequest({ model: byId("model").value, mode: "completion", decoder, request: this.request.values() });
    return body;
  }

  /** Mark the control of this side that a fault names. */
  blame(param, side) {
    for (const form of [this.request, this.decoders[side]]) if (form?.blame(param)) break;
  }
}
