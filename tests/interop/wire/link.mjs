// docs/protocol.md, "Links": two streams, one to write and one to read.
import { randomBytes } from 'node:crypto'
import { checkFields, decode, encode, ensure, isHash, isHex, isListOf, isOneOf, isSignature, isText, isUInt } from './canonical.mjs'
import { frame, frames, write } from './frames.mjs'
import { checkSignature, isAccount } from './identity.mjs'

export const PROTOCOL = '/gdf/ledger/1'
const HELLO = 0
const DATA = 1
const isAddress = isText(1, 200)

const VOUCHER = { addresses: isListOf(isAddress, 0, 4), expires_ms: isUInt, peer: isAccount, sig: isSignature }
const HELLO_FIELDS = {
  account: isAccount,
  addresses: isListOf(isAddress, 0, 4),
  bulk: (value) => value === null || checkFields('voucher', value, VOUCHER) === undefined,
  network: isHash,
  peers: isListOf(isAddress, 0, 32),
  session: isHex(32),
  version: isOneOf(1)
}

export function openHello (payload, network, peer) {
  const hello = decode(payload, 16_384)
  checkFields('hello', hello, HELLO_FIELDS)
  ensure(hello.network === network, `a node of network ${hello.network}`)
  ensure(hello.account === peer, `${peer} introduced itself as ${hello.account}`)
  if (hello.bulk !== null) {
    const { sig, ...covered } = hello.bulk
    checkSignature(network, 'bulk', peer, encode(covered), sig)
  }
  return hello
}

/** All links of one host: what its peers say goes to ``onHello`` and ``onMessage`` (peer, value). */
export class Links {
  constructor (host, network, account, { onHello, onMessage }) {
    this.host = host
    this.network = network
    this.account = account
    this.session = randomBytes(16).toString('hex')
    this.streams = new Map()
    this.onHello = onHello
    this.onMessage = onMessage
  }

  /** Serve the stream that each peer opens to us; before the first dial, since nodes open theirs at once. */
  async listen () {
    await this.host.handle(PROTOCOL, (stream, connection) => {
      this.#hear(stream, connection.remotePeer.toString()).catch((error) => {
        if (!stream.timeline.close) stream.abort(error)
        console.error(`link: ${error.message}`)
      })
    })
  }

  async #hear (stream, peer) {
    for await (const [kind, payload] of frames(stream)) {
      if (kind === HELLO) {
        this.onHello(peer, openHello(payload, this.network, peer))
      } else {
        ensure(kind === DATA, `a frame of kind ${kind}`)
        this.onMessage(peer, decode(payload))
      }
    }
  }

  /** Open our stream to a connected peer and say hello. */
  async open (connection, network = this.network) {
    const stream = await connection.newStream(PROTOCOL)
    this.streams.set(connection.remotePeer.toString(), stream)
    const hello = {
      account: this.account, addresses: [], bulk: null, network, peers: [], session: this.session, version: 1
    }
    await write(stream, frame(HELLO, encode(hello)))
  }

  async send (peer, message) {
    await this.sendRaw(peer, frame(DATA, encode(message)))
  }

  async sendRaw (peer, bytes) {
    await write(this.streams.get(peer), bytes)
  }
}
