// The page: takes requests from the controls, runs them, and hands their runs to panes and transport.

import { Api } from "./api.js";
import { scaleOf } from "./bars.js";
import { differing, drawTable } from "./compare.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { copyText } from "./copies.js";
import { byId, perFrame } from "./dom.js";
import { hindrance, refill } from "./infill.js";
import { Pane } from "./pane.js";
import { Replay } from "./replay.js";
import { asCurl, asPython, streamed } from "./request.js";
import { Run } from "./run.js";
import { download, read } from "./runfile.js";
import { Status } from "./status.js";
import { setUpTheme } from "./theme.js";
import { Tip } from "./tip.js";

class Playground {
  constructor() {
    this.api = new Api();
    this.abort = null;
    this.runs = [];
    this.redraw = perFrame(() => this.draw());
    this.conversation = new Conversation();
    const actions = [
      { label: "Refill selection", act: (pane) => this.refill(pane), why: (pane) => this.whyNoRefill(pane) },
      { label: "Copy text", act: (pane) => copyText("Answer", pane.run.parts.join("")), why: (pane) => this.whyNoCopy(pane) },
    ];
    const options = { tip: new Tip(), actions, onSeek: (index) => this.replay.seek(index) };
    this.composer = null; // panes ask for it
    this.panes = [new Pane("A", options), new Pane("B", options)];
    this.replay = new Replay((index, at) => this.drawAt(index, at));
    this.composer = new Composer({
      onArrange: () => this.arrange(),
      onMissing: (name) => this.complain(`This server has no model ${JSON.stringify(name)}; the page asks for the one it has.`),
    });
    this.status = new Status(this.api, (models) => this.composer.setModels(models));
    this.listen();
    if (matchMedia("(max-width: 1020px)").matches) for (const group of document.querySelectorAll("#settings details")) group.open = false;
    setUpTheme(() => this.draw());
    this.composer.recall();
    this.status.poll();
    this.describe();
  }

  listen() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.start();
    });
    byId("guesses").addEventListener("change", () => byId("panes").classList.toggle("no-guesses", !byId("guesses").checked));
    byId("stop").addEventListener("click", () => this.abort?.abort());
    byId("fresh").addEventListener("click", () => this.conversation.clear());
    byId("key").addEventListener("input", () => {
      this.api.key = byId("key").value.trim();
    });
    byId("key").addEventListener("change", () => {
      this.status.poll();
      this.describe();
    });
    byId("copy-curl").addEventListener("click", () => this.copy("curl", asCurl));
    byId("copy-python").addEventListener("click", () => this.copy("Python", asPython));
    byId("copy-link").addEventListener("click", () => copyText("Link to these settings", location.href));
    byId("download").addEventListener("click", () => download(this.replay.runs, "psd-run.json"));
    byId("load").addEventListener("change", (event) => this.load(event.target));
    addEventListener("resize", this.redraw);
    document.addEventListener("selectionchange", perFrame(() => this.panes.forEach((pane) => pane.pick())));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.start();
      } else if (event.key === "Escape" && this.abort) {
        this.abort.abort();
      }
    });
  }

  /** Another mode, or another number of sides. */
  arrange() {
    const isCompare = this.composer?.isCompare ?? false;
    this.conversation.show(this.composer?.mode === "chat");
    this.showPanes(isCompare || this.runs.length === 2 ? 2 : 1);
    this.draw();
    for (const pane of this.panes) pane.allow();
  }

  showPanes(count) {
    const host = byId("panes");
    const shown = this.panes.slice(0, count).map((pane) => pane.element);
    if (host.children.length !== count) host.replaceChildren(...shown);
    host.classList.toggle("two", count === 2);
  }

  async start() {
    if (this.abort) return;
    this.complain(null);
    const { prompt, mode } = this.composer;
    if (!prompt) {
      this.complain("There is no prompt yet: write one, or take an example.");
      byId("prompt").focus();
      return;
    }
    let requests;
    try {
      requests = this.composer.requests(this.conversation.messages);
    } catch (error) {
      this.complain(`${error.message}.`);
      return;
    }
    const runs = await this.perform(requests.map((request, side) => ({ ...request, label: this.label(request.body, side) })));
    if (mode === "chat" && !runs[0].fault && runs[0].numTokens !== null) {
      this.conversation.add(prompt, runs[0].text);
      if (this.composer.prompt === prompt) this.composer.prompt = "";
    }
  }

  /** Run the requests side by side or one after the other, and draw them while they run. */
  async perform(requests) {
    const runs = requests.map((request) => new Run(request));
    this.abort = new AbortController();
    this.showRuns(runs);
    this.setBusy(true);
    const work = runs.map((run) => () => this.follow(run, this.abort.signal));
    if (this.composer.isOneByOne) for (const one of work) await one();
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
    const began = performance.now();
    const now = () => performance.now() - began;
    try {
      if (signal.aborted) throw signal.reason;
      for await (const chunk of this.api.stream(run.path, streamed(run.body), signal)) {
        run.take(chunk, now());
        this.redraw();
      }
      run.end(now());
    } catch (error) {
      if (signal.aborted) run.finishReason = "stopped";
      run.end(now(), signal.aborted ? null : error.message);
      if (!signal.aborted) this.onFault(error, this.runs.indexOf(run));
    }
    this.redraw();
  }

  onFault(error, side) {
    if (error.needsKey) byId("key").focus();
    this.composer.blame(error.param, side);
  }

  label(body, side) {
    const settings = Object.entries(body.psd ?? {}).map(([name, value]) => (name === "policy" ? value : `${name} ${value}`));
    const name = settings.join(" · ") || "the server’s own settings";
    return this.composer.isCompare ? `${"AB"[side]} — ${name}` : name;
  }

  showRuns(runs) {
    this.runs = runs;
    byId("table").hidden = true;
    this.showPanes(runs.length);
    this.panes.forEach((pane, side) => pane.show(runs[side] ?? null));
    this.replay.follow(runs);
  }

  /** Draw the latest state of the runs, or where the transport stands once they have ended. */
  draw() {
    if (!this.runs.length) return;
    this.replay.refresh();
    this.drawAt(this.replay.index);
    if (this.abort) byId("progress").textContent = this.panes[0].state.textContent;
  }

  drawAt(index, at) {
    const shown = this.panes.filter((pane) => pane.run);
    const scale = scaleOf(this.runs);
    for (const pane of shown) pane.draw(at === undefined ? index : pane.run.frameAt(at), scale);
    if (shown.length === 2) {
      const marks = differing(...this.runs);
      for (const pane of shown) pane.canvasView.mark(marks);
    }
  }

  setBusy(isBusy) {
    byId("run").disabled = isBusy;
    byId("stop").disabled = !isBusy;
    byId("load").disabled = isBusy;
    byId("progress").textContent = isBusy ? "running" : "done";
    for (const pane of this.panes) pane.allow();
  }

  complain(message) {
    byId("fault").textContent = message ?? "";
    byId("fault").hidden = !message;
  }

  copy(name, write) {
    try {
      const requests = this.composer.requests(this.conversation.messages);
      const texts = requests.map((request) => write(request, (path) => this.api.url(path), Boolean(this.api.key)));
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
      if (this.abort) return; // begun while the file was read
      this.composer.isCompare = runs.length === 2;
      this.showRuns(runs);
      this.draw();
      if (runs.length === 2 && runs.every((run) => run.figures)) drawTable(byId("table"), ...runs);
      this.complain(null);
    } catch (error) {
      this.complain(error.message);
    }
    input.value = "";
  }

  /** Read what the API says of itself: the defaults of a request's fields. */
  async describe() {
    const description = await this.api.json("/openapi.json").catch(() => null); // then controls say that the server decides
    const operation = description?.paths?.["/v1/completions"]?.post;
    this.composer.setDefaults(operation?.requestBody?.content?.["application/json"]?.schema);
  }

  whyNoRefill(pane) {
    if (this.abort) return "A request is running.";
    if (this.composer?.card?.psd?.takes_suffix === false) return "This model does not see what follows: it takes no suffix.";
    if (pane.run && this.composer?.mode === "chat") return "Chats take no suffix: only the answer of a completion can be filled again.";
    return hindrance(pane.run);
  }

  whyNoCopy(pane) {
    if (!pane.run?.isOver) return pane.run ? "A request is running." : "There is no answer yet.";
    return pane.run.parts.join("") ? null : "The answer is empty.";
  }

  /** Turn the selected part of an answer into masks again and let the model fill them. */
  refill(pane) {
    const { run, selected } = pane;
    if (this.whyNoRefill(pane) !== null) return;
    if (!selected) {
      this.complain("Select a part of the answer first, in the canvas or in the text below it: it becomes masks, and the model fills them again.");
      return;
    }
    try {
      const settings = this.composer.settings(this.panes.indexOf(pane));
      this.complain(null);
      this.perform([refill(run, selected, settings)]);
    } catch (error) {
      this.complain(`${error.message}.`);
    }
  }
}

new Playground();
