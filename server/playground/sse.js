// Server-sent events of one response, as objects.

export const DONE = Symbol("done");

/** Yields the JSON of every event of `body` (a ReadableStream of bytes), and DONE for the closing [DONE]. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      const frames = (rest + value).split("\n\n");
      rest = frames.pop();
      for (const frame of frames) {
        const data = frame
          .split("\n")
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).trimStart())
          .join("\n");
        if (data === "[DONE]") yield DONE;
        else if (data) yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // nobody reads on: the connection may close
  }
}
