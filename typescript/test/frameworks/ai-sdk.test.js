// Answers of the AI SDK that a page goes on with, from a provider that says its words when the test wants it.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { after, test } from 'node:test';

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { streamText } from 'ai';
import { connect, openai } from 'outlast';
import { resumed } from 'outlast/ai-sdk';

const home = mkdtempSync(join(tmpdir(), 'outlast-ai-sdk-'));
after(() => rmSync(home, { recursive: true, force: true }));

const chunk = (delta, finish_reason = null) => `data: ${JSON.stringify({ id: 'x', object: 'chat.completion.chunk', created: 1, model: 'gpt-4o-mini', choices: [{ index: 0, delta, finish_reason }] })}\n\n`;
const model = (through) => createOpenAICompatible({ name: 'openai', ...through })('gpt-4o-mini');

test('a page that comes back gets the answer that is under way from its first word on, and its end', async () => {
  const asked = [];
  const provider = createServer((request, response) => {
    request.resume().on('end', () => {
      asked.push(response);
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(chunk({ role: 'assistant', content: 'one ' }));
    });
  });
  provider.listen(0, '127.0.0.1');
  await once(provider, 'listening');
  Object.assign(process.env, { HOME: home, OPENAI_BASE_URL: `http://127.0.0.1:${provider.address().port}/v1`, OPENAI_API_KEY: 'sk-a-fake-key' });
  const connection = connect({ store: join(home, 'runs.db') });
  try {
    let entry;
    await connection.run('chat', async () => {
      const first = streamText({ model: model(openai()), prompt: 'say two words' }).textStream[Symbol.asyncIterator]();
      assert.strictEqual((await first.next()).value, 'one ');
      const answer = await resumed('chat', { connection });
      entry = answer.entry;
      const page = streamText({ model: model(answer), prompt: 'again' }).textStream[Symbol.asyncIterator]();
      assert.strictEqual((await page.next()).value, 'one ');
      asked[0].end(`${chunk({ content: 'two' })}${chunk({}, 'stop')}data: [DONE]\n\n`);
      for (const reader of [first, page]) {
        assert.strictEqual((await reader.next()).value, 'two');
        assert.strictEqual((await reader.next()).done, true);
      }
    });
    assert.strictEqual(await resumed('chat', { connection }), null);
    const over = await resumed('chat', { connection, entry });
    assert.strictEqual(await streamText({ model: model(over), prompt: 'again' }).text, 'one two');
    assert.strictEqual(asked.length, 1);
  } finally {
    provider.closeAllConnections();
    provider.close();
  }
});

/** A connection whose answers are these pieces: an error breaks the connection off. */
const broken = (answers, sent = []) => ({
  sent,
  server: async () => ({
    send: async (_, path) => {
      sent.push(path);
      const parts = answers.shift();
      const read = async function* () {
        for (const part of parts) {
          if (part instanceof Error) throw part;
          yield Buffer.from(part);
        }
      };
      return Object.assign(Readable.from(read()), { headers: { 'content-type': 'application/octet-stream' } });
    },
  }),
});

test('a connection that breaks off is opened again at the byte where it broke, and not if it brings nothing', async () => {
  const once = broken([['{"a"', new Error('reset')], [':1', '}']]);
  const answer = await resumed('r/1', { connection: once, entry: 3 });
  const response = await answer.fetch();
  assert.strictEqual(response.headers.get('content-type'), 'application/json');
  assert.deepStrictEqual(await response.json(), { a: 1 });
  assert.deepStrictEqual(once.sent, ['/v1/runs/r%2F1/entries/3/stream', '/v1/runs/r%2F1/entries/3/stream?from=4']);
  const dead = broken([['{', new Error('reset')], [new Error('gone')]]);
  const never = await (await resumed('r', { connection: dead, entry: 1 })).fetch();
  await assert.rejects(never.text(), /gone/);
  assert.strictEqual(dead.sent.length, 2);
});
