// A conversation by @google/genai's interactions, as a program would have it: the last id is all that it keeps. Options,
// then messages, as JSON lines on stdin; ends on an empty line. Answers on stdout: {"text": …, "history": [id]}.

import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const { GoogleGenAI } = await import(pathToFileURL(process.env.GENAI_JS + '/dist/node/index.mjs').href);

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const next = async () => (await lines.next()).value || '';

const options = JSON.parse(await next());
const ai = new GoogleGenAI({ apiKey: options.key, httpOptions: { baseUrl: options.base_url } });
let id;

for (let line = await next(); line; line = await next()) {
  const request = { model: options.model, input: JSON.parse(line).say, previous_interaction_id: id };
  let text = '';
  if (options.kind === 'stream') {
    for await (const event of await ai.interactions.create({ ...request, stream: true })) {
      if (event.event_type === 'interaction.created') id = event.interaction.id;
      if (event.event_type === 'step.delta' && event.delta.type === 'text') text += event.delta.text;
    }
  } else {
    const interaction = await ai.interactions.create(request);
    id = interaction.id;
    text = interaction.output_text;
  }
  console.log(JSON.stringify({ text, history: [{ id }] }));
}
process.exit(0);
