// The earlier turns of a chat. They live in the page only.

import { byId, make } from "./dom.js";

export class Conversation {
  constructor() {
    this.messages = [];
    this.host = byId("thread");
    this.isShown = false;
  }

  show(isShown) {
    this.isShown = isShown;
    this.host.hidden = !isShown || !this.messages.length;
  }

  add(question, answer) {
    this.messages = [...this.messages, { role: "user", content: question }, { role: "assistant", content: answer }];
    this.host.append(turn("You", question), turn("Model", answer));
    this.show(this.isShown);
  }

  clear() {
    this.messages = [];
    this.host.replaceChildren();
    this.show(this.isShown);
  }
}

function turn(who, text) {
  return make("div", { className: "turn" }, make("b", {}, who), make("p", {}, text));
}
