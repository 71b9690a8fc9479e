// The page: reads the controls, runs requests, and hands their runs to panes and transport.

import { Api } from "./api.js";
import { differing, drawTable } from "./compare.js";
import { copyText } from "./copies.js";
import { Conversation } from "./conversation.js";
import { byId, button, perFrame } from "./dom.js";
import { KnobForm } from "./form.js";
import { countTokens, hasSuffix, selectedPart } from "./infill.js";
import { DECODER_KNOBS, REQUEST_KNOBS } from "./knobs.js";
import { Pane } from "./pane.js";
import { Replay } from "./replay.js";
import { asCurl, asPython, buildRequest, streamed } from "./request.js";
import { Run } from "./run.js";
import { download, read } from "./runfile.js";
import { fromHash, toHash } from "./share.js";
import { Status } from "./status.js";
import { setUpTheme } from "./theme.js";
import { Tip } from "./tip.js";

const EXAMPLES = [
  ["Sort", "Sort these numbers: 7, 9, 4."],
  ["Count", "Karl has 7 keys and sells 2 of them to Felix. How many keys are left for Karl?"],
  ["JSON", "Write as JSON: Tina is 54 years old and lives in Porto."],
  ["Code", 'def backwards(numbers):\n    """Return numbers reversed."""\n'],
  ["Letter", "Write a note from George to Oscar about the party on Saturday."],
];
const PLAIN = { policy: "greedy", draft_depth: "0" }; // what a comparison starts with on its other side

class Playground {
  constructor() {
    this.api = new Api();
    this.abort = null;
    this.redraw = perFrame(() => this.draw());
    this.status = new Status(this.api, (models) => this.setModels(models));
    this.conversation = new Conversation();
    const tip = new Tip();
    const actions = [["Refill selection", (pane) => this.refill(pane)], ["Copy text", (pane) => copyText("Answer", pane.run.text)]];
    const options = { tip, actions, onSeek: (index) => this.replay.seek(index) };
    this.panes = [new Pane("A", options), new Pane("B", options)];
    this.replay = new Replay((index, at) => this.drawAt(index, at));
    const onChange = () => this.remember();
    this.request = new KnobForm(byId("request-knobs"), "request", REQUEST_KNOBS, onChange);
    this.decoders = [
      new KnobForm(byId("decoder-a-knobs"), "a", DECODER_KNOBS, onChange),
      new KnobForm(byId("decoder-b-knobs"), "b", DECODER_KNOBS, onChange),
    ];
    this.listen();
    if (matchMedia("(max-width: 1020px)").matches) for (const group of document.querySelectorAll("#settings details")) group.open = false;
    setUpTheme(() => this.draw());
    this.recall();
    this.status.poll();
    this.checkInfill();
  }

  get mode() {
    return document.querySelector("input[name=mode]:checked").value;
  }

  get isCompare() {
    return byId("compare").checked;
  }

  listen() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.start();
    });
    byId("prompt").addEventListener("input", () => this.remember());
    byId("system").addEventListener("input", () => this.remember());
    for (const id of ["compare", "one-by-one", "model"]) byId(id).addEventListener("change", () => this.arrange());
    for (const radio of document.querySelectorAll("input[name=mode]")) radio.addEventListener("change", () => this.arrange());
    byId("guesses").addEventListener("change", () => byId("panes").classList.toggle("no-guesses", !byId("guesses").checked));
    byId("stop").addEventListener("click", () => this.abort?.abort());
    byId("fresh").addEventListener("click", () => this.conversation.clear());
    byId("key").addEventListener("input", () => {
      this.api.key = byId("key").value.trim();
    });
    byId("key").addEventListener("change", () => {
      this.status.poll();
      this.checkInfill();
    });
    byId("copy-curl").addEventListener("click", () => this.copy("curl", asCurl));
    byId("copy-python").addEventListener("click", () => this.copy("Python", asPython));
    byId("copy-link").addEventListener("click", () => copyText("Link to these settings", location.href));
    byId("download").addEventListener("click", () => download(this.replay.runs, "psd-run.json"));
    byId("load").addEventListener("change", (event) => this.load(event.target));
    byId("examples").append(...EXAMPLES.map(([name, prompt]) => button(name, () => this.setPrompt(prompt), { className: "chip" })));
    addEventListener("hashchange", () => this.recall());
    addEventListener("resize", this.redraw);
    document.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.start();
      } else if (event.key === "Escape" && this.abort) {
        this.abort.abort();
      }
    });
  }

  setPrompt(prompt) {
    byId("prompt").value = prompt;
    byId("prompt").focus();
    this.remember();
  }

  setModels(models) {
    const select = byId("model");
    const chosen = this.wantedModel ?? select.value;
    select.replaceChildren(...models.map(({ id }) => new Option(id, id, false, id === chosen)));
  }

  /** Show what belongs to the chosen mode. */
  arrange() {
    const isChat = this.mode === "chat";
    byId("system-row").hidden = !isChat;
    byId("fresh").hidden = !isChat;
    this.conversation.show(isChat);
    byId("turns-row").hidden = !this.isCompare;
    byId("decoder-b").hidden = !this.isCompare;
    byId("decoder-a-title").textContent = this.isCompare ? "Decoder A" : "Decoder";
    if (this.isCompare && !Object.keys(this.decoders[1].texts).length) this.decoders[1].texts = PLAIN;
    const shown = this.isCompare ? this.panes : this.panes.slice(0, 1);
    for (const pane of shown) pane.element.hidden = false;
    byId("panes").replaceChildren(...shown.map((pane) => pane.element));
    byId("panes").classList.toggle("two", this.isCompare);
    this.remember();
    this.draw();
  }

  /** Write the settings to the address; never the key. */
  remember() {
    const state = {
      mode: this.mode,
      prompt: byId("prompt").value,
      system: byId("system").value,
      compare: this.isCompare,
      turns: byId("one-by-one").checked,
      model: byId("model").selectedIndex > 0 ? byId("model").value : this.wantedModel ?? "",
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
      const radio = document.querySelector(`input[name=mode][value=${state.mode === "chat" ? "chat" : "completion"}]`);
      radio.checked = true;
      byId("prompt").value = state.prompt ?? "";
      byId("system").value = state.system ?? "";
      byId("compare").checked = state.compare === "true";
      byId("one-by-one").checked = state.turns === "true";
      this.wantedModel = state.model;
      this.request.texts = state.request ?? {};
      this.decoders[0].texts = state.a ?? {};
      this.decoders[1].texts = state.b ?? {};
    } else {
      byId("prompt").value = EXAMPLES[0][1];
    }
    this.arrange();
  }

  /** One request per side, with the same seed. Error, in words, if a control is out of range. */
  requests() {
    const request = this.request.values();
    if (this.isCompare && request.temperature && request.seed === undefined) request.seed = Math.floor(Math.random() * 2 ** 31);
    const sides = this.isCompare ? this.decoders : this.decoders.slice(0, 1);
    return sides.map((form) =>
      buildRequest({
        model: byId("model").value,
        mode: this.mode,
        prompt: byId("prompt").value,
        system: byId("system").value.trim(),
        turns: this.conversation.messages,
        decoder: form.values(),
        request,
      }),
    );
  }

  async start() {
    if (this.abort) return;
    this.complain(null);
    if (!byId("prompt").value) {
      this.complain("There is no prompt yet: write one, or take an example.");
      byId("prompt").focus();
      return;
    }
    let requests;
    try {
      requests = this.requests();
    } catch (error) {
      this.complain(`${error.message}.`);
      return;
    }
    const runs = await this.perform(requests);
    if (this.mode === "chat" && runs[0].finishReason && !runs[0].fault && runs[0].finishReason !== "stopped") {
      this.conversation.add(byId("prompt").value, runs[0].text);
      byId("prompt").value = "";
      this.remember();
    }
  }

  /** Run the requests side by side or one after the other, and draw them while they run. */
  async perform(requests) {
    const runs = requests.map((request, side) => new Run({ ...request, label: this.label(request.body, side) }));
    this.showRuns(runs);
    this.abort = new AbortController();
    this.setBusy(true);
    const work = runs.map((run) => () => this.follow(run, this.abort.signal));
    if (byId("one-by-one").checked) for (const one of work) await one();
    else await Promise.all(work.map((one) => one()));
    this.abort = null;
    this.setBusy(false);
    this.draw();
    this.replay.follow(runs);
    if (runs.length === 2 && runs.every((run) => run.figures)) drawTable(byId("table"), ...runs);
    this.status.soon();
    return runs;
  }

  async follow(run, signal) {
    if (signal.aborted) return run.end(0);
    const began = performance.now();
    const now = () => performance.now() - began;
    try {
      for await (const chunk of this.api.stream(run.path, streamed(run.body), signal)) {
        run.take(chunk, now());
        this.redraw();
      }
      run.end(now());
      this.decoders[this.runs.indexOf(run)]?.showDefaults(run.figures ?? {});
    } catch (error) {
      if (signal.aborted) run.finishReason = "stopped";
      run.end(now(), signal.aborted ? null : error.message);
      if (!signal.aborted) this.onFault(error, this.runs.indexOf(run));
    }
    this.redraw();
    return run;
  }

  onFault(error, side) {
    if (error.needsKey) byId("key").focus();
    for (const form of [this.request, this.decoders[side]]) if (form.blame(error.param)) break;
  }

  label(body, side) {
    const settings = Object.entries(body.psd ?? {}).map(([name, value]) => (name === "policy" ? value : `${name} ${value}`));
    const name = settings.join(" · ") || "the server’s own settings";
    return this.isCompare ? `${"AB"[side]} — ${name}` : name;
  }

  showRuns(runs) {
    this.runs = runs;
    byId("table").hidden = true;
    this.panes.forEach((pane, side) => {
      pane.canvasView.mark(new Set());
      pane.show(runs[side] ?? null);
      pane.element.hidden = side >= runs.length;
    });
    this.replay.follow(runs);
  }

  /** Draw the latest state of the runs, or where the transport stands once they have ended. */
  draw() {
    if (!this.runs) return;
    this.replay.refresh();
    this.drawAt(this.replay.index);
    if (this.abort) byId("progress").textContent = this.panes[0].state.textContent;
  }

  drawAt(index, at) {
    const shown = this.panes.filter((pane) => pane.run);
    for (const pane of shown) pane.draw(at === undefined ? index : pane.run.frameAt(at));
    if (shown.length === 2 && this.isCompare) {
      const marks = differing(...this.runs);
      for (const pane of shown) pane.canvasView.mark(marks);
    }
  }

  setBusy(isBusy) {
    byId("run").disabled = isBusy;
    byId("stop").disabled = !isBusy;
    byId("load").disabled = isBusy;
    byId("progress").textContent = isBusy ? "running" : "done";
  }

  complain(message) {
    byId("fault").textContent = message ?? "";
    byId("fault").hidden = !message;
  }

  copy(name, write) {
    try {
      const texts = this.requests().map((request) => write(request, (path) => this.api.url(path), Boolean(this.api.key)));
      this.complain(null);
      copyText(`This request as ${name}`, texts.join("\n\n"));
    } catch (error) {
      this.complain(`${error.message}.`);
    }
  }

  async load(input) {
    const [file] = input.files;
    if (!file) return;
    try {
      const runs = await read(file);
      byId("compare").checked = runs.length === 2;
      this.showRuns(runs);
      this.arrange();
      if (runs.every((run) => run.figures) && runs.length === 2) drawTable(byId("table"), ...runs);
      this.complain(null);
    } catch (error) {
      this.complain(error.message);
    }
    input.value = "";
  }

  async checkInfill() {
    const offers = await hasSuffix(this.api).catch(() => false);
    document.documentElement.classList.toggle("has-suffix", offers);
  }

  /** Turn the selected text of an answer into masks again and let the model fill them. */
  async refill(pane) {
    const part = selectedPart(pane.answer);
    const { run } = pane;
    if (this.abort) return;
    if (!part || !run.path.endsWith("/completions") || run.body.prompt === undefined) {
      this.complain("Select a part of the answer of a completion first: it becomes masks, and the model fills them again.");
      return;
    }
    this.complain(null);
    try {
      const count = await countTokens(this.api, part.chosen);
      const { suffix = "", ...rest } = run.body;
      const body = { ...rest, prompt: run.body.prompt + pane.lead + part.before, suffix: part.after + suffix, max_tokens: count, ignore_eos: true };
      await this.perform([{ path: run.path, body }]);
    } catch (error) {
      this.complain(error.message);
    }
  }
}

new Playground();
