// The request as data, and the same request as commands to copy.

/** Path and body of one run. `turns`: earlier messages of a conversation, without the prompt. */
export function buildRequest({ model, mode, prompt, system, turns, decoder, request, suffix }) {
  const shared = { model, ...request, ...(Object.keys(decoder).length ? { psd: decoder } : {}) };
  if (mode === "completion") {
    return { path: "/v1/completions", body: { ...shared, prompt, ...(suffix === undefined ? {} : { suffix }) } };
  }
  const head = system ? [{ role: "system", content: system }] : [];
  return { path: "/v1/chat/completions", body: { ...shared, messages: [...head, ...turns, { role: "user", content: prompt }] } };
}

/** The body as it is sent: a stream that also shows the canvas and ends with the usage. */
export function streamed(body) {
  return { ...body, stream: true, diffusing: true, stream_options: { include_usage: true } };
}

/** A command for a shell. The key is never in it: it comes from the variable PSD_API_KEY. */
export function asCurl({ path, body }, url, hasKey) {
  const lines = [`curl ${quoteShell(url(path))}`, "-H 'Content-Type: application/json'"];
  if (hasKey) lines.push('-H "Authorization: Bearer $PSD_API_KEY"');
  lines.push(`-d ${quoteShell(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}

/** A script for OpenAI's client. Fields that the client does not know travel in extra_body. */
export function asPython({ path, body }, url, hasKey) {
  const known = ["model", "prompt", "suffix", "messages", "max_tokens", "temperature", "top_p", "seed", "stop"];
  const isKnown = ([name]) => known.includes(name);
  const fields = Object.entries(body).filter(isKnown).map(([name, value]) => `    ${name}=${python(value)},`);
  const extra = Object.fromEntries(Object.entries(body).filter((entry) => !isKnown(entry)));
  if (Object.keys(extra).length) fields.push(`    extra_body=${python(extra)},`);
  const isChat = path.includes("chat");
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${python(url("/v1"))}, api_key=${hasKey ? 'os.environ["PSD_API_KEY"]' : '"none"'})`,
    `answer = client.${isChat ? "chat.completions" : "completions"}.create(`,
    ...fields,
    ")",
    `print(answer.choices[0].${isChat ? "message.content" : "text"})`,
    "",
  ].join("\n");
}

function quoteShell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A JSON value as a Python literal; strings are the same in both but for what JSON leaves unescaped. */
function python(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, entry]) => `${python(name)}: ${python(entry)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
