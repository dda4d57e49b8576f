// A program on Vercel's AI SDK that asks Gemini: the proxy runs the session's tools, the program its own.
//
//     ./run_proxy.sh --set graft_tools=examples/weather.py
//     npm install ai @ai-sdk/openai zod
//     ./run_proxy.sh run --openai -- node examples/ai_sdk.mjs "What is the weather in Oslo, and what do I pack?"

import { createOpenAI } from '@ai-sdk/openai';
import { stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY });

const pack = tool({
  description: 'What to pack for a temperature.',
  inputSchema: z.object({ celsius: z.number() }),
  execute: async ({ celsius }) => ({ wear: celsius < 10 ? 'a coat' : 'a shirt' }),
});

const answer = streamText({
  model: openai('gemini-3-flash'),
  tools: { pack },
  prompt: process.argv.slice(2).join(' ') || 'What is the weather in Oslo, and what do I pack?',
  stopWhen: stepCountIs(8),
  onError: ({ error }) => {
    throw error;
  },
});
for await (const text of answer.textStream) process.stdout.write(text);
console.log();
