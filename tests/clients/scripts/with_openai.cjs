// openai for Node: models, completions, chats, streams, tools, errors.
// usage: node with_openai.cjs FOLDER_WITH_NODE_MODULES URL RECITER_URL
const assert = require("node:assert");
const { createRequire } = require("node:module");

const [folder, url, reciter] = process.argv.slice(2);
const OpenAI = createRequire(`${folder}/`)("openai");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const PROMPT = "What is 7 + 5?";
const WEATHER = {
  type: "function",
  function: { name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } } } },
};

async function main() {
  const names = [];
  for await (const model of await client.models.list()) names.push(model.id);
  assert.deepStrictEqual(names, ["tiny"]);
  assert.strictEqual((await client.models.retrieve("tiny")).id, "tiny");

  const body = { model: "tiny", prompt: PROMPT, max_tokens: 40 };
  const whole = await client.completions.create(body);
  let text = "";
  for await (const chunk of await client.completions.create({ ...body, stream: true })) text += chunk.choices[0].text;
  assert.strictEqual(text, whole.choices[0].text);

  const chat = { model: "tiny", messages: [{ role: "user", content: PROMPT }], max_tokens: 40, n: 2, seed: 3 };
  const answer = await client.chat.completions.create(chat);
  assert.strictEqual(answer.choices.length, 2);
  const texts = ["", ""];
  let usage = null;
  const stream = await client.chat.completions.create({ ...chat, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    for (const choice of chunk.choices) texts[choice.index] += choice.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.deepStrictEqual(texts, answer.choices.map((choice) => choice.message.content));
  assert.strictEqual(usage.completion_tokens, answer.usage.completion_tokens);

  const other = new OpenAI({ baseURL: `${reciter}/v1`, apiKey: "none", maxRetries: 0 });
  const asked = { model: "tiny", messages: [{ role: "user", content: "Weather in Lisbon?" }], tools: [WEATHER], max_tokens: 184 };
  const helper = other.chat.completions.stream(asked);
  const called = await helper.finalChatCompletion();
  assert.strictEqual(called.choices[0].finish_reason, "tool_calls");
  assert.deepStrictEqual(JSON.parse(called.choices[0].message.tool_calls[0].function.arguments), { city: "Lisbon" });

  await assert.rejects(client.completions.create({ ...body, model: "other" }), OpenAI.NotFoundError);
  await assert.rejects(client.completions.create({ ...body, max_tokens: 100000 }), (error) => {
    assert(error instanceof OpenAI.BadRequestError);
    assert.strictEqual(error.code, "context_length_exceeded");
    assert(error.requestID);
    return true;
  });
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
