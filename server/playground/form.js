// Controls for a list of knobs: one label, one field for each side, the range and one line of explanation each.

import { make } from "./dom.js";
import { ownText, parseKnob, rangeText } from "./knobs.js";

/** One side of a group of controls. `texts` maps names to what stands in them; `onChange` is called after every edit. */
export class KnobForm {
  /** `beside`: the form of side a, whose rows this one puts its fields into. */
  constructor(host, prefix, knobs, onChange, beside = null) {
    this.side = beside ? "b" : "a";
    this.knobs = knobs.map((knob) => ({ ...knob })); // their limits follow the model
    this.fields = new Map();
    this.own = {};
    for (const knob of this.knobs) {
      const row = beside ? beside.fields.get(knob.name).row : this.row(prefix, knob);
      if (!beside) host.append(row);
      this.fill(row, prefix, knob, onChange);
    }
    this.dim();
  }

  get texts() {
    const entries = [...this.fields].map(([name, { field }]) => [name, field.type === "checkbox" ? field.checked : field.value]);
    return Object.fromEntries(entries.filter(([, text]) => text !== "" && text !== false));
  }

  set texts(texts) {
    for (const [name, { field }] of this.fields) {
      if (field.type === "checkbox") field.checked = texts[name] === true || texts[name] === "true";
      else field.value = texts[name] ?? "";
      this.check(name);
    }
    this.dim();
  }

  /** The values of all controls that do not stand empty. Error, in words, for the first that is out of range. */
  values() {
    const values = {};
    const { texts } = this;
    for (const knob of this.knobs) {
      const { field } = this.fields.get(knob.name);
      if (field.validity.badInput) throw new Error(`${knob.name} must be a number`);
      const value = parseKnob(knob, texts[knob.name]);
      if (value !== undefined) values[knob.name] = value;
    }
    return values;
  }

  /** Show in empty controls what the server uses, and how far the model's context reaches. */
  showOwn(own, contextLength) {
    this.own = own;
    for (const knob of this.knobs) {
      const { field, range } = this.fields.get(knob.name);
      const text = ownText(knob, own[knob.name]);
      if (field.tagName === "SELECT") field.options[0].textContent = knob.name in own ? `${text} (own)` : text;
      else field.placeholder = text;
      if (knob.isContext && contextLength) {
        knob.max = contextLength;
        field.max = contextLength;
        if (range) range.textContent = rangeText(knob);
      }
      this.check(knob.name);
    }
    this.dim();
  }

  /** Mark the control that an error names, and bring it into view. False if there is none of that name. */
  blame(param) {
    const entry = this.fields.get(param?.replace(/^psd\./, ""));
    if (!entry) return false;
    entry.field.setAttribute("aria-invalid", "true");
    entry.field.closest("details")?.setAttribute("open", "");
    return true;
  }

  /** What both sides share: name, range, explanation. */
  row(prefix, knob) {
    const range = make("span", { className: "range" }, rangeText(knob));
    const label = make("label", { for: `${prefix}-${knob.name}` }, knob.name, range);
    const help = make("span", { className: "help", id: `${prefix}-${knob.name}-help` }, knob.help);
    return make("div", { className: `knob ${knob.kind}`, "data-knob": knob.name }, label, make("div", { className: "fields" }), help);
  }

  fill(row, prefix, knob, onChange) {
    const id = `${prefix}-${knob.name}`;
    const field = control(knob, id);
    const fault = make("span", { className: "fault", id: `${id}-fault`, role: "alert", "data-side": this.side });
    const chosen = knob.kind === "choice" ? make("span", { className: "chosen", "data-side": this.side }) : null;
    field.dataset.side = this.side;
    field.setAttribute("aria-describedby", `${row.querySelector(".help").id} ${fault.id}`);
    if (this.side === "b") field.setAttribute("aria-label", `${knob.name} of decoder B`);
    row.querySelector(".fields").append(field);
    row.append(...[chosen, fault].filter(Boolean));
    this.fields.set(knob.name, { knob, row, field, fault, chosen, range: this.side === "a" ? row.querySelector(".range") : null });
    field.addEventListener("input", () => {
      this.check(knob.name);
      this.dim();
      onChange();
    });
  }

  check(name) {
    const { knob, field, fault, chosen } = this.fields.get(name);
    if (chosen) chosen.textContent = knob.choices[field.value || this.own[name]] ?? "";
    fault.textContent = "";
    field.removeAttribute("aria-invalid");
    if (field.validity.badInput) {
      fault.textContent = `${name} must be a number`;
    } else {
      try {
        parseKnob(knob, this.texts[name]);
        return;
      } catch (error) {
        fault.textContent = error.message;
      }
    }
    field.setAttribute("aria-invalid", "true");
  }

  /** Fade the numbers that the chosen policy does not read. */
  dim() {
    const policy = this.fields.get("policy")?.field.value || this.own.policy;
    for (const { knob, field } of this.fields.values()) {
      field.classList.toggle("unread", Boolean(policy && knob.policies && !knob.policies.includes(policy)));
    }
  }
}

function control(knob, id) {
  switch (knob.kind) {
    case "choice": {
      const names = Object.keys(knob.choices).map((name) => make("option", { value: name }, name));
      return make("select", { id }, make("option", { value: "" }, "server’s own"), ...names);
    }
    case "switch":
      return make("input", { id, type: "checkbox" });
    case "lines":
      return make("textarea", { id, rows: 2, spellcheck: false });
    case "wordy":
      return make("input", { id, type: "text", placeholder: "server’s own", autocomplete: "off" });
    default: {
      const field = make("input", { id, type: "number", step: knob.step ?? 1, placeholder: "server’s own" });
      Object.assign(field, { min: knob.min, max: knob.max, value: knob.initial ?? "", autocomplete: "off" });
      return field;
    }
  }
}
