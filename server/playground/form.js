// Controls for a list of knobs: one label, one field, its range and one line of explanation each.

import { make } from "./dom.js";
import { parseKnob, rangeText } from "./knobs.js";

/** A group of controls. `texts` maps names to what stands in the controls; `onChange` is called after every edit. */
export class KnobForm {
  constructor(host, prefix, knobs, onChange) {
    this.knobs = knobs;
    this.fields = new Map();
    for (const knob of knobs) host.append(this.row(prefix, knob, onChange));
    this.dim();
  }

  get texts() {
    const entries = [...this.fields].map(([name, { field }]) => [name, field.type === "checkbox" ? field.checked : field.value]);
    return Object.fromEntries(entries.filter(([, text]) => text !== "" && text !== false));
  }

  set texts(texts) {
    for (const [name, { field }] of this.fields) {
      if (field.type === "checkbox") field.checked = Boolean(texts[name]) && texts[name] !== "false";
      else field.value = texts[name] ?? "";
      this.check(name);
    }
    this.dim();
  }

  /** The values of all controls that do not stand empty. Error, in words, for the first that is out of range. */
  values() {
    const values = {};
    for (const knob of this.knobs) {
      const value = parseKnob(knob, this.texts[knob.name]);
      if (value !== undefined) values[knob.name] = value;
    }
    return values;
  }

  /** Show, where a control stands empty, what the server used instead. */
  showDefaults(used) {
    for (const [name, { field }] of this.fields) {
      if (used[name] === undefined) continue;
      if (field.tagName === "SELECT") field.options[0].textContent = `(${used[name]})`;
      else field.placeholder = used[name] === null ? "all" : String(used[name]);
    }
    this.usedPolicy = used.policy;
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

  row(prefix, knob, onChange) {
    const id = `${prefix}-${knob.name}`;
    const field = control(knob, id);
    const fault = make("span", { className: "fault", id: `${id}-fault`, role: "alert" });
    const help = make("span", { className: "help", id: `${id}-help` }, knob.help);
    const chosen = knob.kind === "choice" ? make("span", { className: "chosen" }) : null;
    field.setAttribute("aria-describedby", `${id}-help ${id}-fault`);
    this.fields.set(knob.name, { knob, field, fault, chosen });
    field.addEventListener("input", () => {
      this.check(knob.name);
      this.dim();
      onChange();
    });
    const range = make("span", { className: "range" }, rangeText(knob));
    const label = make("label", { for: id }, knob.name, range);
    return make("div", { className: `knob ${knob.kind}`, "data-knob": knob.name }, label, field, help, chosen, fault);
  }

  check(name) {
    const { knob, field, fault, chosen } = this.fields.get(name);
    if (chosen) chosen.textContent = knob.choices[field.value] ?? "";
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
    const policy = this.fields.get("policy")?.field.value || this.usedPolicy;
    for (const { knob, field } of this.fields.values()) {
      const isUnread = Boolean(policy && knob.policies && !knob.policies.includes(policy));
      field.closest(".knob")?.classList.toggle("unread", isUnread);
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
