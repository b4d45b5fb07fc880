// docs/protocol.md, "Bytes": canonical JSON, digests, hex.
import { createHash } from 'node:crypto'

export const MAX_MESSAGE_BYTES = 65_536

/** What a peer sent is not what the protocol allows. */
export class WireError extends Error {}

export function ensure (condition, sentence) {
  if (!condition) throw new WireError(sentence)
}

/** Return the canonical text of null, booleans, integers, text, arrays and objects. */
export function canonicalText (value) {
  if (value === null || typeof value === 'boolean') return String(value)
  if (typeof value === 'number') {
    ensure(Number.isSafeInteger(value), `${value} is not an integer within 2**53 - 1`)
    return String(value)
  }
  if (typeof value === 'string') {
    ensure(value.isWellFormed(), 'a text with half a character')
    return JSON.stringify(value)
  }
  if (Array.isArray(value)) return `[${value.map(canonicalText).join(',')}]`
  return `{${Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonicalText(value[key])}`).join(',')}}`
}

export function encode (value) {
  return Buffer.from(canonicalText(value))
}

const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** Return the value of canonical bytes; WireError for anything but the one encoding of a value. */
export function decode (bytes, maxBytes = MAX_MESSAGE_BYTES) {
  ensure(bytes.length <= maxBytes, `${bytes.length} bytes; at most ${maxBytes} are read`)
  let value
  try {
    value = JSON.parse(strict.decode(bytes))
  } catch (error) {
    throw new WireError(`not JSON: ${error.message}`)
  }
  ensure(encode(value).equals(bytes), 'not the canonical encoding of its value')
  return value
}

export function sha256 (...parts) {
  const hash = createHash('sha256')
  for (const part of parts) hash.update(part)
  return hash.digest()
}

/** SHA-256 over a tag, a zero byte, and each part behind its length in eight bytes. */
export function digest (tag, ...parts) {
  const pieces = [Buffer.from(`${tag}\0`)]
  for (const part of parts) {
    const length = Buffer.alloc(8)
    length.writeBigUInt64BE(BigInt(part.length))
    pieces.push(length, part)
  }
  return sha256(...pieces)
}

/** Check that ``value`` has exactly these fields, each accepted by its test. */
export function checkFields (what, value, fields) {
  ensure(value !== null && typeof value === 'object' && !Array.isArray(value), `a ${what} is an object`)
  const found = Object.keys(value).sort().join()
  const wanted = Object.keys(fields).sort().join()
  ensure(found === wanted, `a ${what} with the fields ${found}; expected ${wanted}`)
  for (const [name, accepts] of Object.entries(fields)) {
    ensure(accepts(value[name]), `${what}.${name}: ${JSON.stringify(value[name])?.slice(0, 100)}`)
  }
}

export const isHex = (characters) => (value) => typeof value === 'string' && value.length === characters && /^[0-9a-f]*$/.test(value)
export const isHash = isHex(64)
export const isSignature = isHex(128)
export const isInt = (least, most = Number.MAX_SAFE_INTEGER) => (value) => Number.isSafeInteger(value) && value >= least && value <= most
export const isUInt = isInt(0)
export const isPpm = isInt(0, 1_000_000)
export const isText = (least, most) => (value) => typeof value === 'string' && [...value].length >= least && [...value].length <= most
export const isOneOf = (...values) => (value) => values.includes(value)
export const isBoolean = (value) => typeof value === 'boolean'
export const isListOf = (accepts, least, most) => (value) =>
  Array.isArray(value) && value.length >= least && value.length <= most && value.every(accepts)
