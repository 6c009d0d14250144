// Values as they are recorded: JSON. What JSON has not is an object with one tag, `$outlast`, as in Python:
//
//   Date                 {"$outlast": "date", "value": "2026-11-27T00:00:00.000Z"}
//   bigint               {"$outlast": "bigint", "value": "123"}
//   bytes                {"$outlast": "bytes", "value": "<base64>"}      (Uint8Array, Buffer, ArrayBuffer)
//   Map                  {"$outlast": "map", "value": [[key, value], …]}
//   Set                  {"$outlast": "set", "value": [value, …]}
//   NaN, ±Infinity, -0   {"$outlast": "float", "value": "nan" | "inf" | "-inf" | "-0"}
//   undefined            {"$outlast": "undefined"}, at the top and in arrays; a member that is undefined is left out
//
// Anything else (functions, symbols, instances of classes, cycles) is refused before anything is written: it would come
// back as another value.

import { Buffer } from 'node:buffer';
import { createHash } from 'node:crypto';

import { NotSerializable, Unkeyable } from './errors.js';

const TAG = '$outlast';
const HINT = 'use plain data: texts, numbers, booleans, null, arrays, plain objects, Date, bigint, bytes, Map, Set';

/**
 * The value as JSON text, from which `decode` makes the same value again. Throws `NotSerializable`.
 * @param {unknown} value
 * @returns {string}
 */
export function encode(value) {
  return JSON.stringify(plain(value));
}

/**
 * The value as data that JSON has: a copy, from which `decode` makes the same value again. Throws `NotSerializable`.
 * @param {unknown} value
 * @returns {any}
 */
export function plain(value) {
  return tagged(value, 'the value', [], refused);
}

/** @param {string} what @param {string} path @returns {Error} */
function refused(what, path) {
  return new NotSerializable(`${path} is ${what}, which cannot be recorded`, { code: 'not_serializable', hint: HINT });
}

/**
 * The value that a recorded one stands for. It is the first life's result too, so that all lives see the same.
 * @param {any} json
 * @returns {any}
 */
export function decode(json) {
  if (json === null || typeof json !== 'object') return json;
  if (Array.isArray(json)) return json.map(decode);
  if (typeof json[TAG] === 'string') return untagged(json);
  /** @type {Record<string, unknown>} */
  const made = {};
  for (const key of Object.keys(json)) define(made, key, decode(json[key]));
  return made;
}

/** A member of its own, also where its name is `__proto__`. @param {object} made @param {string} key @param {unknown} value */
function define(made, key, value) {
  Object.defineProperty(made, key, { value, writable: true, enumerable: true, configurable: true });
}

/** @param {any} json @returns {any} */
function untagged(json) {
  const { [TAG]: tag, value } = json;
  switch (tag) {
    case 'date': return new Date(value);
    case 'bigint': return BigInt(value);
    case 'bytes': return new Uint8Array(Buffer.from(value, 'base64'));
    case 'map': return new Map(value.map((/** @type {any[]} */ pair) => pair.map(decode)));
    case 'set': return new Set(value.map(decode));
    case 'undefined': return undefined;
    case 'float': return { nan: NaN, inf: Infinity, '-inf': -Infinity, '-0': -0 }[/** @type {'nan'} */ (value)];
    // A class of another language's program: its fields are plain data.
    default: return decode(value);
  }
}

/**
 * @param {any} value
 * @param {string} path
 * @param {unknown[]} around
 * @param {(what: string, path: string) => Error} refuse
 * @returns {any}
 */
function tagged(value, path, around, refuse) {
  switch (typeof value) {
    case 'string':
      if (!value.isWellFormed?.() && /[\ud800-\udfff]/u.test(value)) throw refuse('a text that is no Unicode', path);
      return value;
    case 'boolean': return value;
    case 'number':
      if (Number.isFinite(value) && !Object.is(value, -0)) return value;
      return { [TAG]: 'float', value: Object.is(value, -0) ? '-0' : Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '-inf' };
    case 'bigint': return { [TAG]: 'bigint', value: value.toString() };
    case 'undefined': return { [TAG]: 'undefined' };
    case 'object': break;
    default: throw refuse(`a ${typeof value}`, path);
  }
  if (value === null) return null;
  if (around.includes(value)) throw refuse('a structure that holds itself', path);
  const inner = [...around, value];
  if (Array.isArray(value)) return Array.from(value, (one, i) => tagged(one, `${path}[${i}]`, inner, refuse));
  if (value instanceof Date) {
    if (Number.isNaN(value.getTime())) throw refuse('an invalid Date', path);
    return { [TAG]: 'date', value: value.toISOString() };
  }
  if (value instanceof ArrayBuffer) return { [TAG]: 'bytes', value: Buffer.from(value).toString('base64') };
  if (value instanceof Uint8Array) {
    return { [TAG]: 'bytes', value: Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('base64') };
  }
  if (value instanceof Map) {
    return { [TAG]: 'map', value: [...value].map((pair, i) => pair.map((one) => tagged(one, `${path}'s pair ${i}`, inner, refuse))) };
  }
  if (value instanceof Set) return { [TAG]: 'set', value: [...value].map((one) => tagged(one, `a member of ${path}`, inner, refuse)) };
  const proto = Object.getPrototypeOf(value);
  if (proto !== null && Object.getPrototypeOf(proto) !== null) {
    throw refuse(`an instance of ${proto.constructor?.name ?? 'a class'}`, path);
  }
  if (Object.getOwnPropertySymbols(value).length > 0) throw refuse('an object with symbols as keys', path);
  /** @type {Record<string, unknown>} */
  const made = {};
  for (const key of Object.keys(value)) {
    if (key === TAG) throw refuse(`an object with the key ${TAG}, which is reserved`, path);
    if (value[key] !== undefined) define(made, key, tagged(value[key], `${path}.${key}`, inner, refuse));
  }
  return made;
}

/**
 * The text by which arguments and items are known: equal for equal values, whatever the order of an object's keys.
 * Throws `Unkeyable`.
 * @param {unknown} value
 * @returns {string}
 */
export function identity(value) {
  const refuse = (/** @type {string} */ what, /** @type {string} */ path) =>
    new Unkeyable(`${path} is ${what}, which has no key`, {
      code: 'unkeyable',
      hint: 'give a key; or pass data, and close over what is no input, such as a client',
    });
  return JSON.stringify(sorted(tagged(value, 'the value', [], refuse)));
}

/** @param {any} json @returns {any} */
function sorted(json) {
  if (json === null || typeof json !== 'object') return json;
  if (Array.isArray(json)) return json.map(sorted);
  /** @type {Record<string, unknown>} */
  const made = {};
  for (const key of Object.keys(json).sort()) define(made, key, sorted(json[key]));
  // The order of sets and maps does not count.
  if (json[TAG] === 'set' || json[TAG] === 'map') made.value = json.value.map(sorted).map((/** @type {any} */ one) => JSON.stringify(one)).sort();
  return made;
}

/** @param {string} text */
export function sha256(text) {
  return createHash('sha256').update(text).digest('hex');
}

/**
 * The arguments of a call as people are shown them: the first characters of each.
 * @param {unknown[]} args
 * @param {number} [each]
 * @returns {string[]}
 */
export function shown(args, each = 80) {
  /** @type {string[]} */
  const texts = [];
  let whole = 4 * each;
  for (const arg of args) {
    const text = shownOne(arg);
    const cut = text.length > each ? `${text.slice(0, each - 1)}…` : text;
    whole -= cut.length;
    if (whole < 0) {
      texts.push('…');
      break;
    }
    texts.push(cut);
  }
  return texts;
}

/** @param {unknown} arg @returns {string} */
function shownOne(arg) {
  if (typeof arg === 'function') return `function ${arg.name}`;
  try {
    return JSON.stringify(arg, (_, v) => (typeof v === 'bigint' ? `${v}n` : v)) ?? String(arg);
  } catch {
    return Object.prototype.toString.call(arg);
  }
}
