// Values, keys, budgets and retries: what needs no server.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { limits } from '../src/budget.js';
import { decode, encode, identity } from '../src/codec.js';
import { BadLimit, Conflict, NotSerializable, OutlastError, Unkeyable, errorOf } from '../src/errors.js';
import { delay } from '../src/retry.js';

const again = (value) => decode(JSON.parse(encode(value)));

test('a value comes back as it was', () => {
  const whole = {
    text: 'é\u2028"', none: null, yes: true, half: 0.5, big: 2n ** 70n, at: new Date(1_700_000_000_123),
    bytes: new Uint8Array([0, 255]), map: new Map([[{ a: 1n }, new Set(['x', 2])]]), list: [[], {}],
    odd: [NaN, Infinity, -Infinity, -0], __proto__x: 1,
  };
  assert.deepStrictEqual(again(whole), whole);
  assert.ok(Object.is(again(-0), -0));
  assert.strictEqual(again(undefined), undefined);
  assert.deepStrictEqual(again([undefined]), [undefined]);
  assert.deepStrictEqual(again({ gone: undefined }), {});
  assert.deepStrictEqual(again(Buffer.from('ab')), new Uint8Array([97, 98]));
  const named = JSON.parse('{"__proto__": {"x": 1}}');
  assert.deepStrictEqual(Object.keys(again(named)), ['__proto__']);
  assert.strictEqual(again(named).x, undefined);
});

test('what would come back as another value is refused, with its place', () => {
  class Point {}
  const self = {};
  self.self = self;
  for (const [value, word] of [
    [() => 1, /the value is a function/], [{ a: [Symbol('x')] }, /the value\.a\[0\] is a symbol/], [new Point(), /an instance of Point/],
    [self, /holds itself/], [{ $outlast: 'date' }, /reserved/], ['\ud800', /no Unicode/], [new Date(NaN), /invalid Date/],
    [/x/, /an instance of RegExp/], [new Error('x'), /an instance of Error/], [{ [Symbol('s')]: 1 }, /symbols as keys/],
  ]) {
    assert.throws(() => encode(value), (e) => e instanceof NotSerializable && e.code === 'not_serializable' && word.test(e.message) && !!e.hint, String(word));
  }
});

test('a class that another language recorded is read as its fields', () => {
  assert.deepStrictEqual(decode({ $outlast: 'app:Page', value: { url: 'x' } }), { url: 'x' });
});

test('equal values have one key, whatever the order of their members, and others have others', () => {
  assert.strictEqual(identity({ a: 1, b: [new Set([1, 2])] }), identity({ b: [new Set([2, 1])], a: 1 }));
  assert.strictEqual(identity(new Map([[1, 2], [3, 4]])), identity(new Map([[3, 4], [1, 2]])));
  const all = [1, '1', 1n, true, null, undefined, [], {}, [1], [[1]], { a: 1 }, { a: '1' }, new Date(1), new Set([1]), new Map([[1, 1]]), new Uint8Array([1]), -0, 0, NaN];
  assert.strictEqual(new Set(all.map(identity)).size, all.length);
  assert.throws(() => identity([() => 1]), Unkeyable);
});

test('limits are exact', () => {
  assert.deepStrictEqual(limits({ usd: 0.1, loops: 3, wall: '1h30m', active: 1.5 }), { cost_nano_usd: 100_000_000, loops: 3, wall_ms: 5_400_000, active_ms: 1500 });
  assert.deepStrictEqual(limits({ usd: '0.123456789' }), { cost_nano_usd: 123_456_789 });
  assert.deepStrictEqual(limits({ usd: 1e-7 }), { cost_nano_usd: 100 });
  for (const bad of [{ usd: -1 }, { usd: NaN }, { usd: '1e3' }, { loops: 1.5 }, { wall: '90' }, { wall: -1 }]) assert.throws(() => limits(bad), BadLimit, JSON.stringify(bad));
});

test('what helps is tried again, as often as is allowed', () => {
  const status = (status, headers = {}) => Object.assign(new Error('x'), { status, headers });
  assert.strictEqual(delay(undefined, new Error('x'), 1), undefined);
  assert.strictEqual(delay({ retries: 2, base: 0 }, new Error('x'), 2), 0);
  assert.strictEqual(delay({ retries: 2, base: 0 }, new Error('x'), 3), undefined);
  assert.strictEqual(delay(2, status(402), 1), undefined);
  assert.strictEqual(delay(2, status(400), 1), undefined);
  assert.strictEqual(delay(2, status(429, { 'retry-after': '3' }), 1), 3000);
  assert.strictEqual(delay(2, status(500, new Headers({ 'retry-after-ms': '7' })), 1), 7);
  assert.strictEqual(delay(2, new OutlastError('x'), 1), undefined);
  assert.ok(delay(2, new Conflict('x'), 1) !== undefined);
  assert.strictEqual(delay({ retries: 2, on: () => false }, new Error('x'), 1), undefined);
});

test('a code has its class, and its hint stands in the message', () => {
  const made = errorOf('loop_budget_exceeded', 'no more loops', 'raise it');
  assert.deepStrictEqual([made.name, made.code, made.hint, made.message], ['BudgetExceeded', 'loop_budget_exceeded', 'raise it', 'no more loops\nhint: raise it']);
  assert.strictEqual(errorOf('store_full', 'x').name, 'StoreError');
  assert.strictEqual(errorOf('something_new', 'x').constructor, OutlastError);
});
