// Canonical JSON, domain-separated hashes, accounts and signatures, as docs/proofs.md and docs/protocol.md describe them.
// Written for WebCrypto alone: nothing is loaded from anywhere.

const utf8 = new TextEncoder();

/** What does not hold; its message says why. */
export class Refused extends Error {}

export function ensure(holds, why) {
  if (!holds) throw new Refused(why);
}

/** Return the one text of a value: sorted keys, no spaces, integers of at most 2**53 - 1. */
export function canonical(value) {
  if (value === null || typeof value === "string") return JSON.stringify(value);
  if (typeof value === "boolean") return String(value);
  if (typeof value === "number") {
    ensure(Number.isSafeInteger(value), `${value} is no integer within 2**53 - 1`);
    return String(value);
  }
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  const fields = Object.keys(value).sort();
  return `{${fields.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
}

export const bytes = (text) => utf8.encode(text);
export const encode = (value) => bytes(canonical(value));

export function fromHex(text) {
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

export function toHex(data) {
  return Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function join(...parts) {
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

export async function sha256(data) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", data));
}

/** Return the hex SHA-256 over a domain tag, a zero byte, and parts that have their length (8 bytes) before them. */
export async function digest(tag, ...parts) {
  const pieces = [bytes(tag), new Uint8Array(1)];
  for (const part of parts) {
    const length = new DataView(new ArrayBuffer(8));
    length.setBigUint64(0, BigInt(part.length));
    pieces.push(new Uint8Array(length.buffer), part);
  }
  return toHex(await sha256(join(...pieces)));
}

const ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
const PEER_ID = 0x002408011220n; // identity multihash of a protobuf that holds an Ed25519 key of 32 bytes
const P = 2n ** 255n - 19n;
const D = 37095705934669439343138083508754565189542113879843219016388785533085940283555n;

function power(base, exponent) {
  let result = 1n;
  for (let factor = base % P, left = exponent; left > 0n; left >>= 1n) {
    if (left & 1n) result = (result * factor) % P;
    factor = (factor * factor) % P;
  }
  return result;
}

/** Say whether the point of a y, where x**2 = (y**2 - 1) / (d y**2 + 1), doubled three times is the identity: for such a
 * key anybody can make signatures. */
function isSmallOrder(y) {
  let v = y;
  for (let times = 0; times < 3; times += 1) {
    // the y of twice a point of -x**2 + y**2 = 1 + d x**2 y**2 needs x**2 only
    const square = (v * v) % P;
    const xx = ((square - 1n + P) * power((D * square + 1n) % P, P - 2n)) % P;
    const below = (2n - square + xx + 2n * P) % P;
    if (below === 0n) return true;
    v = ((square + xx) * power(below, P - 2n)) % P;
  }
  return v === 1n;
}

function isOnCurve(y) {
  const square = (y * y) % P;
  const xx = ((square - 1n + P) * power((D * square + 1n) % P, P - 2n)) % P;
  return xx === 0n || power(xx, (P - 1n) / 2n) === 1n;
}

const keys = new Map();

/** Return the key inside an account id; refuses what is none, and keys of small order. */
export async function publicKey(account) {
  const known = keys.get(account);
  if (known) return known;
  const wrong = `"${account}" is no account id`;
  ensure(/^12D3KooW[1-9A-HJ-NP-Za-km-z]{44}$/.test(account), wrong);
  let number = 0n;
  for (const letter of account) number = number * 58n + BigInt(ALPHABET.indexOf(letter));
  ensure(number >> 256n === PEER_ID, wrong);
  const raw = fromHex((number & ((1n << 256n) - 1n)).toString(16).padStart(64, "0"));
  const y = BigInt(`0x${toHex(Uint8Array.from(raw).reverse())}`) & ((1n << 255n) - 1n);
  ensure(y < P && isOnCurve(y) && !isSmallOrder(y), `${account} holds an Ed25519 key of small order, or none`);
  const key = await crypto.subtle.importKey("raw", raw, { name: "Ed25519" }, false, ["verify"]);
  keys.set(account, key);
  return key;
}

/** Refuse unless an account signed (network, kind, message). */
export async function verifySignature(network, kind, account, message, signature) {
  const covered = join(bytes(`gdf-market/1\0${network}\0${kind}\0`), message);
  const holds = await crypto.subtle.verify({ name: "Ed25519" }, await publicKey(account), fromHex(signature), covered);
  ensure(holds, `signature of ${account} over a ${kind} does not verify`);
}

/** Return why this browser cannot check signatures; "" if it can. */
export async function missing() {
  if (!globalThis.crypto?.subtle) {
    return "the browser offers WebCrypto only on https pages and on this machine's own (http://127.0.0.1)";
  }
  try {
    await crypto.subtle.importKey("raw", fromHex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"), { name: "Ed25519" }, false, ["verify"]);
  } catch {
    return "this browser has no Ed25519 in WebCrypto (Chrome and Edge 137, Firefox 129, Safari 17 and later have it)";
  }
  return "";
}
