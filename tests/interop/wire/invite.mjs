// docs/protocol.md, "Invites".
import { checkFields, decode, digest, ensure, isHash, isListOf, isText } from './canonical.mjs'

const PREFIX = 'gdf1-'
const MAX_CHARS = 24_576

/** Return {network, name, bootstrap, genesis} of an invite that carries its genesis. */
export function parseInvite (text) {
  ensure(text.startsWith(PREFIX) && text.length <= MAX_CHARS, 'not an invite')
  const body = decode(Buffer.from(text.slice(PREFIX.length), 'base64url'), MAX_CHARS)
  checkFields('invite', body, {
    bootstrap: isListOf(isText(1, 200), 0, 8), genesis: isText(1, 10_926), name: isText(1, 40), network: isHash
  })
  const raw = Buffer.from(body.genesis, 'base64')
  ensure(digest('gdf/genesis', raw).toString('hex') === body.network, 'the genesis is not that of the network')
  return { ...body, genesis: decode(raw, 8_192) }
}
