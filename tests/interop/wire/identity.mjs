// docs/protocol.md, "Accounts and signatures".  Ed25519 by Node's own crypto, not by libp2p's.
import { createPrivateKey, createPublicKey, sign, verify } from 'node:crypto'
import { ensure } from './canonical.mjs'

const ALPHABET = '123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz'
const PEER_ID_PREFIX = Buffer.from('002408011220', 'hex')
const PKCS8_PREFIX = Buffer.from('302e020100300506032b657004220420', 'hex')
const SPKI_PREFIX = Buffer.from('302a300506032b6570032100', 'hex')

function base58 (bytes) {
  let number = BigInt(`0x${bytes.toString('hex')}`)
  let text = ''
  for (; number > 0n; number /= 58n) text = ALPHABET[Number(number % 58n)] + text
  for (const byte of bytes) {
    if (byte !== 0) break
    text = `1${text}`
  }
  return text
}

function fromBase58 (text) {
  let number = 0n
  for (const character of text) {
    const digit = ALPHABET.indexOf(character)
    ensure(digit >= 0, `${text} is not base58`)
    number = number * 58n + BigInt(digit)
  }
  const hex = number.toString(16)
  const zeros = text.match(/^1*/)[0].length
  return Buffer.concat([Buffer.alloc(zeros), Buffer.from(hex.length % 2 ? `0${hex}` : hex, 'hex')])
}

export function accountOf (publicKey) {
  return base58(Buffer.concat([PEER_ID_PREFIX, publicKey]))
}

/** Return the 32 bytes of the key in an account id. */
export function publicKeyOf (account) {
  const bytes = fromBase58(account)
  ensure(bytes.length === 38 && bytes.subarray(0, 6).equals(PEER_ID_PREFIX), `${account} is no Ed25519 peer id`)
  const key = bytes.subarray(6)
  ensure(accountOf(key) === account, `${account} is no Ed25519 peer id`)
  return key
}

export const isAccount = (value) => typeof value === 'string' && /^12D3KooW[1-9A-HJ-NP-Za-km-z]{44}$/.test(value)

/** The bytes that a signature covers: domain, network, kind, and then the message. */
function covered (network, kind, message) {
  return Buffer.concat([Buffer.from(`gdf-market/1\0${network}\0${kind}\0`), message])
}

export class Key {
  constructor (seed) {
    this.seed = seed
    this.private = createPrivateKey({ key: Buffer.concat([PKCS8_PREFIX, seed]), format: 'der', type: 'pkcs8' })
    this.public = createPublicKey(this.private).export({ format: 'der', type: 'spki' }).subarray(SPKI_PREFIX.length)
    this.account = accountOf(this.public)
  }

  /** Return the signature in hex. */
  sign (network, kind, message) {
    return sign(null, covered(network, kind, message), this.private).toString('hex')
  }
}

export function checkSignature (network, kind, account, message, signature) {
  const key = createPublicKey({ key: Buffer.concat([SPKI_PREFIX, publicKeyOf(account)]), format: 'der', type: 'spki' })
  const good = verify(null, covered(network, kind, message), key, Buffer.from(signature, 'hex'))
  ensure(good, `the signature of ${account} over a ${kind} does not verify`)
}
