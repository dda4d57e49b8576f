// Turns of the AI SDK by each of its means, with tools of its own beside the session's. Prints a line of JSON for each.
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

globalThis.AI_SDK_LOG_WARNINGS = false;
const openai = createOpenAI({
  baseURL: process.env.OPENAI_BASE_URL,
  apiKey: process.env.OPENAI_API_KEY,
  headers: { 'x-graft-session': process.env.SESSION },
});
const tools = {
  note: tool({ description: 'Notes.', inputSchema: z.object({ n: z.number() }), execute: async ({ n }) => ({ noted: n }) }),
};
const QUESTION = 'call note {"n": 1} and call note {"n": 2} then call weather {"city": "Oslo"} and call note {"n": 3}';
const ENCRYPTED = { store: false, include: ['reasoning.encrypted_content'] };

async function turn(model, options, messages, stream) {
  const given = { model, tools, messages, maxRetries: 0, stopWhen: stepCountIs(8), providerOptions: { openai: options } };
  if (!stream) return generateText(given);
  let failure;
  const running = streamText({ ...given, onError: ({ error }) => { failure = error; } });
  for await (const _ of running.textStream);
  if (failure) throw failure;
  return { text: await running.text, response: await running.response, providerMetadata: await running.providerMetadata };
}

// Sends the whole history: as references to stored items, or whole.
async function history(model, options, stream) {
  const messages = [], texts = [];
  for (let n = 0; n < 3; n++) {
    messages.push({ role: 'user', content: QUESTION });
    const answer = await turn(model, options, messages, stream);
    messages.push(...answer.response.messages);
    texts.push(answer.text);
  }
  return texts;
}

// Sends only what is new.
async function kept(first, next, stream) {
  const texts = [];
  let options = first;
  for (let n = 0; n < 3; n++) {
    const answer = await turn(openai('gemini-3-flash'), options, [{ role: 'user', content: QUESTION }], stream);
    options = next(answer);
    texts.push(answer.text);
  }
  return texts;
}

const conversation = { conversation: 'of-the-ai-sdk' };
const kinds = {
  references: (stream) => history(openai('gemini-3-flash'), {}, stream),
  stateless: (stream) => history(openai('gemini-3-flash'), ENCRYPTED, stream),
  chat: (stream) => history(openai.chat('gemini-3-flash'), {}, stream),
  conversation: (stream) => kept(conversation, () => conversation, stream),
  previous: (stream) => kept({}, (one) => ({ previousResponseId: one.providerMetadata.openai.responseId }), stream),
};
for (const [kind, run] of Object.entries(kinds)) {
  for (const stream of [false, true]) console.log(JSON.stringify({ kind, stream, texts: await run(stream) }));
}
