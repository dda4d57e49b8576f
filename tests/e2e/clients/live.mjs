// A Live session of @google/genai, as a program would have it. Options, then what to send, as JSON lines on stdin;
// ends on an empty line. What comes is on stdout, one message a line: {"got": …}.

import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const { GoogleGenAI } = await import(pathToFileURL(process.env.GENAI_JS + '/dist/node/index.mjs').href);

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const next = async () => (await lines.next()).value || '';

const options = JSON.parse(await next());
const ai = new GoogleGenAI({
  apiKey: options.key,
  httpOptions: { baseUrl: options.base_url, headers: options.headers },
});
const session = await ai.live.connect({
  model: options.model,
  config: options.config ?? {},
  callbacks: {
    onmessage: (message) => console.log(JSON.stringify({ got: message })),
    onclose: (event) => console.log(JSON.stringify({ closed: event.code, reason: event.reason })),
    onerror: (event) => console.log(JSON.stringify({ error: String(event.message) })),
  },
});

for (let line = await next(); line; line = await next()) {
  const given = JSON.parse(line);
  if ('say' in given) {
    session.sendClientContent({ turns: [{ role: 'user', parts: [{ text: given.say }] }], turnComplete: true });
  } else if ('speak' in given) {
    const data = Buffer.from(given.speak).toString('base64');
    session.sendRealtimeInput({ audio: { data, mimeType: 'audio/pcm;rate=16000' } });
  } else if ('silence' in given) {
    session.sendRealtimeInput({ audioStreamEnd: true });
  } else if ('answer' in given) {
    session.sendToolResponse({ functionResponses: [given.answer] });
  }
}
session.close();
process.exit(0);
