// A chat of @google/genai, as a program would have it. Options, then messages, as JSON lines on stdin; ends on an
// empty line. Answers on stdout: {"text": …, "history": […]}.

import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const { GoogleGenAI } = await import(pathToFileURL(process.env.GENAI_JS + '/dist/node/index.mjs').href);

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const next = async () => (await lines.next()).value || '';

const options = JSON.parse(await next());
const ai = new GoogleGenAI({
  apiKey: options.key,
  vertexai: options.vertex ?? false,
  httpOptions: { baseUrl: options.base_url, headers: options.headers },
});
const own = (options.tools ?? []).map((name) => ({ name, description: 'One of the client.' }));
const declared = { functionDeclarations: own };
// `runs`: the client runs its functions by itself
const callable = {
  tool: async () => declared,
  callTool: async (calls) =>
    calls.map(({ id, name }) => ({ functionResponse: { id, name, response: { said_by: 'the client' } } })),
};
const config = own.length ? { tools: [options.runs ? callable : declared] } : {};
const chat = ai.chats.create({ model: options.model, config });

for (let line = await next(); line; line = await next()) {
  const message = JSON.parse(line).say;
  let text = '';
  if (options.kind === 'stream') {
    for await (const piece of await chat.sendMessageStream({ message })) text += piece.text ?? '';
  } else {
    text = (await chat.sendMessage({ message })).text ?? '';
  }
  console.log(JSON.stringify({ text, history: chat.getHistory(true) }));
}
process.exit(0);
