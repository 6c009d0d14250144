// What a program in TypeScript writes with the plug-ins: held by `tsc` against the types of the package and of the frameworks.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { Annotation, START, StateGraph } from '@langchain/langgraph';
import { Mastra } from '@mastra/core';
import { Agent, type Session, tool } from '@openai/agents';
import { generateText, type LanguageModel, tool as aiTool } from 'ai';
import { connect, map, run, tool as once, type Run } from 'outlast';
import { durable as durableSet, resumed } from 'outlast/ai-sdk';
import { OutlastSaver, OutlastStore } from 'outlast/langgraph';
import { OutlastStorage } from 'outlast/mastra';
import { durable, OutlastSession } from 'outlast/openai-agents';
import { z } from 'zod';

const parameters = z.object({ who: z.string() });
const connection = connect({ url: 'http://127.0.0.1:9' });

export const made: Promise<number> = run('r', { budget: { usd: 1 } }, async (r: Run) => {
  const length: number = await r.step('length', (text: string) => text.length, 'tea');
  const refund = once(async (who: string, cents: number) => ({ who, cents }), { name: 'refund', effects: 'idempotent' });
  for await (const result of map([1, 2], (n) => `${n}`, { job: 'j' })) result.value satisfies string;
  return length + (await refund('bob', 500)).cents;
});
export const session: Session = new OutlastSession('ann', { connection });
export const agent = new Agent({ name: 'clerk', tools: [durable(tool({ name: 'a', description: 'b', parameters, execute: ({ who }) => who }), { approve: true })] });
export const mastra = new Mastra({ storage: new OutlastStorage({ connection }) });
export const graph = new StateGraph(Annotation.Root({ n: Annotation<number>() }))
  .addNode('node', () => ({ n: 1 }))
  .addEdge(START, 'node')
  .compile({ checkpointer: new OutlastSaver({ connection }), store: new OutlastStore({ connection }) });
export const ask = (model: LanguageModel) =>
  generateText({ model, prompt: 'refund bob', tools: durableSet({ refund: aiTool({ inputSchema: parameters, execute: async ({ who }) => who }) }, { refund: { effects: 'read' } }) });
export const again = async () => {
  const answer = await resumed('chat', { connection });
  return answer && createOpenAICompatible({ name: 'openai', ...answer })('gpt-4o-mini');
};
