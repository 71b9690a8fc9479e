// The server's public API over fetch. The key lives in this object and nowhere else.

import { DONE, events } from "./sse.js";

/** What went wrong, in words. `param` names the field at fault, `needsKey` says that a key would help. */
export class ApiFault extends Error {
  constructor(message, { param = null, needsKey = false } = {}) {
    super(message);
    this.param = param;
    this.needsKey = needsKey;
  }
}

export class Api {
  constructor() {
    this.key = "";
    this.base = new URL("./", document.baseURI);
  }

  /** The full address of a path of the API. */
  url(path) {
    return new URL(path.replace(/^\//, ""), this.base).href;
  }

  /** The JSON of a GET, or of a POST if there is a body. */
  async json(path, body) {
    const response = await this.send(path, body);
    return response.json();
  }

  /** The text of a GET. */
  async text(path) {
    const response = await this.send(path);
    return response.text();
  }

  /** Yields the chunks of a stream. ApiFault for whatever ends it but [DONE] and `signal`. */
  async *stream(path, body, signal) {
    const response = await this.send(path, body, signal);
    let isDone = false;
    try {
      for await (const event of events(response.body)) {
        if (event === DONE) isDone = true;
        else if (event.error) throw fault(500, event.error, response);
        else yield event;
      }
    } catch (error) {
      if (error instanceof ApiFault || signal?.aborted) throw error;
      throw new ApiFault("The connection was lost in the middle of the answer. Is the server still running?");
    }
    if (!isDone) throw new ApiFault("The stream ended before the answer was complete.");
  }

  async send(path, body, signal) {
    const headers = this.key ? { Authorization: `Bearer ${this.key}` } : {};
    const init = { headers, signal, cache: "no-store" };
    if (body !== undefined) {
      Object.assign(init, { method: "POST", body: JSON.stringify(body) });
      headers["Content-Type"] = "application/json";
    }
    let response;
    try {
      response = await fetch(this.url(path), init);
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ApiFault("The server cannot be reached. Is it running, and is this page from the same address?");
    }
    if (response.ok) return response;
    const answer = await response.json().catch(() => ({}));
    throw fault(response.status, answer.error ?? {}, response);
  }
}

const ADVICE = {
  401: "This server asks for an API key: enter it under “Key”.",
  404: "The server does not know this.",
  413: "The request is too large for this server.",
  429: "The server is busy: its queue is full.",
  500: "The server failed.",
  503: "The server is not ready.",
  504: "The server gave up: the request took longer than it allows.",
};

function fault(status, error, response) {
  const advice = ADVICE[status] ?? "The server refused the request.";
  const said = error.message ? ` It says: ${error.message}.`.replace(/\.\.$/, ".") : "";
  const after = response.headers.get("retry-after");
  const wait = after && status !== 200 ? ` Try again in ${after} s.` : "";
  return new ApiFault(advice + said + wait, { param: error.param ?? null, needsKey: status === 401 });
}
