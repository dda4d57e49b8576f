// Turns of OpenAI's JavaScript package by each of its means, with a function of its own beside the session's tools.
// Prints a line of JSON for each.
import OpenAI from 'openai';

const openai = new OpenAI({ maxRetries: 0, defaultHeaders: { 'x-graft-session': process.env.SESSION } });
const model = 'gemini-3-flash';
const parameters = { type: 'object', properties: { n: { type: 'number' } }, required: ['n'], additionalProperties: false };
const tools = [{ type: 'function', name: 'note', description: 'Notes.', parameters, strict: true }];
const QUESTION = 'call note {"n": 1} and call note {"n": 2} then call weather {"city": "Oslo"} and call note {"n": 3}';
const ENCRYPTED = { store: false, include: ['reasoning.encrypted_content'] };

async function respond(given, stream) {
  if (!stream) return openai.responses.create({ model, tools, ...given });
  const running = openai.responses.stream({ model, tools, ...given });
  for await (const _ of running);
  return running.finalResponse();
}

const outputsOf = (response) => response.output.filter(({ type }) => type === 'function_call').map(
  ({ call_id }) => ({ type: 'function_call_output', call_id, output: '{"noted": 3}' }));

// The answer to a question. `next`: the fields of the request that follow a response and its new items.
async function answer(question, first, next, stream) {
  let items = [{ role: 'user', content: question }];
  let response = await respond({ ...first, input: items }, stream);
  while ((items = outputsOf(response)).length) response = await respond(next(response, items), stream);
  return response;
}

async function turns(first, next, stream) {
  const texts = [];
  let before = first;
  for (const question of [QUESTION, 'repeat the results']) {
    const response = await answer(question, before, next, stream);
    texts.push(response.output_text);
    before = next(response, []);
  }
  return texts;
}

async function stateless(stream, given) {
  let items = [];
  const texts = [];
  for (const question of [QUESTION, 'repeat the results']) {
    items.push({ role: 'user', content: question });
    for (;;) {
      const response = await respond({ ...given.options, input: items }, stream);
      items = [...items, ...response.output.map(given.item), ...outputsOf(response)];
      if (outputsOf(response).length) continue;
      texts.push(response.output_text);
      break;
    }
  }
  return texts;
}

async function chat(stream) {
  const runner = openai.chat.completions.runTools({
    model, stream, messages: [{ role: 'user', content: QUESTION }],
    tools: [{ type: 'function', function: { name: 'note', parse: JSON.parse, parameters, function: () => ({ noted: 3 }) } }],
  });
  return [await runner.finalContent()];
}

const KINDS = {
  previous: (stream) => turns({}, ({ id }, input) => ({ previous_response_id: id, input }), stream),
  conversation: async (stream) => {
    const conversation = (await openai.conversations.create({ metadata: { topic: 'trip' } })).id;
    const texts = await turns({ conversation }, (_, input) => ({ conversation, input }), stream);
    let count = 0;
    for await (const _ of openai.conversations.items.list(conversation, { limit: 2 })) count += 1;
    if (count < 10) throw new Error(`only ${count} items`);
    return texts;
  },
  references: (stream) => stateless(stream, { options: {}, item: ({ id }) => ({ type: 'item_reference', id }) }),
  stateless: (stream) => stateless(stream, { options: ENCRYPTED, item: (item) => item }),
  chat,
};
for (const kind of Object.keys(KINDS)) {
  for (const stream of [false, true]) console.log(JSON.stringify({ kind, stream, texts: await KINDS[kind](stream) }));
}
