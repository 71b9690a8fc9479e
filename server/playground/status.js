// The status strip: model, device, queue and acceptance, read from /metrics and /v1/models.

import { byId } from "./dom.js";

const PERIOD_MS = 3000;
const SOON_MS = 250;

/** Samples of Prometheus' text format: name with labels → value. */
export function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const cut = line.lastIndexOf(" ");
    if (cut > 0 && !line.startsWith("#")) samples.set(line.slice(0, cut), Number(line.slice(cut + 1)));
  }
  return samples;
}

export class Status {
  constructor(api, onModels) {
    this.api = api;
    this.onModels = onModels;
    this.models = [];
    this.timer = null;
    document.addEventListener("visibilitychange", () => this.poll());
  }

  /** Read now, and again every few seconds while the page is visible. */
  async poll() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    try {
      if (!this.models.length) {
        this.models = (await this.api.json("/v1/models")).data;
        this.onModels(this.models);
      }
      this.draw(parseMetrics(await this.api.text("/metrics")));
    } catch (error) {
      this.models = []; // whoever answers next may have others
      note(error.needsKey ? "the status needs a key" : error.message);
    }
    this.timer = setTimeout(() => this.poll(), PERIOD_MS);
  }

  /** Read once the server has counted what just ended. */
  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.poll(), SOON_MS);
  }

  draw(samples) {
    const infos = [...samples.keys()].filter((name) => name.startsWith("psd_model_info{"));
    const label = (name) => [...new Set(infos.map((info) => new RegExp(`${name}="([^"]*)"`).exec(info)?.[1]))].join(", ");
    const drafted = samples.get("psd_drafted_tokens_total") ?? 0;
    const accepted = samples.get("psd_accepted_tokens_total") ?? 0;
    set("status-model", this.models.map((model) => model.id).join(", "));
    const kinds = [label("device"), label("dtype"), label("quantization")].filter((text) => text !== "none");
    set("status-device", infos.length ? kinds.join(" · ") : "loading");
    set("status-running", String(samples.get("psd_requests_running") ?? "–"));
    set("status-waiting", String(samples.get("psd_requests_waiting") ?? "–"));
    set("status-acceptance", drafted ? `${Math.round((accepted / drafted) * 100)} %` : "–");
    note("");
  }
}

function set(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

/** What is wrong; the page cuts it where its line ends, so the whole of it is the title, too. */
function note(text) {
  set("status-note", text);
  byId("status-note").title = text;
}
