// The client: a js-libp2p host that speaks gdf-market's protocols.
import './polyfill.mjs'
import { randomBytes } from 'node:crypto'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { generateKeyPairFromSeed } from '@libp2p/crypto/keys'
import { gossipsub } from '@libp2p/gossipsub'
import { identify } from '@libp2p/identify'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'
import { fetchBlob } from './blobs.mjs'
import { ensure } from './canonical.mjs'
import { Chain } from './chain.mjs'
import { messageId, OrderGossip } from './gossip.mjs'
import { Key } from './identity.mjs'
import { parseInvite } from './invite.mjs'
import { Links } from './link.mjs'
import { Mailbox } from './mailbox.mjs'

const SECONDS = 60 // patience on a busy machine

async function makeHost (key) {
  return createLibp2p({
    privateKey: await generateKeyPairFromSeed('Ed25519', key.seed),
    addresses: { listen: [] },
    transports: [tcp()],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    connectionMonitor: { enabled: false }, // it hangs up when one ping is late; who hangs up here is the node
    services: {
      identify: identify(),
      ping: ping({ maxOutboundStreams: 8, timeout: SECONDS * 1_000 }),
      pubsub: gossipsub({ msgIdFn: messageId })
    }
  })
}

export class Client {
  /** Make a key, and a host with it for the network of an invite. */
  static async start (inviteText) {
    const key = new Key(randomBytes(32))
    const client = new Client(parseInvite(inviteText), key, await makeHost(key))
    await client.links.listen()
    return client
  }

  constructor (invite, key, host) {
    this.invite = invite
    this.network = invite.network
    this.key = key
    this.host = host
    this.chain = new Chain(invite.network, invite.genesis)
    this.gossip = new OrderGossip(host.services.pubsub, invite.network, key)
    this.hellos = new Mailbox('hello')
    this.answers = new Mailbox('answer')
    this.closed = new Mailbox('end of the connection')
    this.statuses = 0
    this.links = new Links(host, invite.network, key.account, {
      onHello: (peer, hello) => this.hellos.put({ peer, hello }),
      onMessage: (peer, message) => this.#onMessage(peer, message)
    })
    host.addEventListener('peer:disconnect', (event) => this.closed.put(event.detail.toString()))
  }

  #onMessage (peer, message) {
    if (message.type === 'sync_response') this.answers.put({ peer, message })
    else if (message.type === 'status') this.statuses += 1
  }

  /** Dial the first node of the invite, or of another one to the same network; return what libp2p agreed on. */
  async connect ({ invite } = {}) {
    const { network, bootstrap } = invite === undefined ? this.invite : parseInvite(invite)
    ensure(network === this.network, 'an invite to another network')
    this.closed.items = []
    const connection = await this.host.dial(multiaddr(bootstrap[0]))
    this.connection = connection
    this.peer = connection.remotePeer.toString()
    return { peer: this.peer, encryption: connection.encryption, muxer: connection.multiplexer }
  }

  async identify () {
    const { agentVersion, protocols, peerId } = await this.host.services.identify.identify(this.connection)
    return { peer: peerId.toString(), agentVersion, protocols }
  }

  async ping () {
    return { ms: await this.host.services.ping.ping(this.connection.remotePeer) }
  }

  /** Join the topic of orders. */
  join () {
    return this.gossip.join(this.peer)
  }

  /** Wait for the order with this title. */
  async order ({ title }) {
    const { id, body, from, via, raw } = await this.gossip.orders.take((order) => order.body.title === title, SECONDS)
    this.seen = body
    return { id, body, from, via, bytes: raw.length }
  }

  /** Have the message of an order sent again. */
  again () {
    return this.gossip.again(this.peer)
  }

  /** Link up: our stream and hello, and the node's. */
  async link ({ network = this.network } = {}) {
    await this.links.open(this.connection, network)
    const { hello } = await this.hellos.take(({ peer }) => peer === this.peer)
    this.hello = hello
    return hello
  }

  /** Fetch and verify blocks until the chain has ``height`` of them. */
  async sync ({ height }) {
    while (this.chain.blocks.length < height) {
      await this.links.send(this.peer, { height: this.chain.next, type: 'sync_request' })
      for (let more = true; more;) {
        const { message } = await this.answers.take(({ peer }) => peer === this.peer)
        this.chain.take(message.blocks)
        more = message.more
      }
    }
    const { blocks, certificates, closing, epoch } = this.chain
    return { height: blocks.length, hashes: blocks.map(({ hash }) => hash), certificates, closing, epoch, statuses: this.statuses }
  }

  /** Say in which verified block an entry is, if in one. */
  find ({ id }) {
    return { height: this.chain.blocks.find(({ entries }) => entries.includes(id))?.height ?? null }
  }

  /** Sign an order like the last one that was seen, and gossip it. */
  async publish ({ title }) {
    this.own = this.gossip.seal(this.seen, { title })
    return { id: this.own.id, recipients: await this.gossip.publish(this.own.raw) }
  }

  /** Send the last own order to the ledger. */
  async submit () {
    await this.links.send(this.peer, { entries: [JSON.parse(this.own.raw)], type: 'entries' })
    return { id: this.own.id }
  }

  /** Fetch a blob from the bulk host that the node vouched for. */
  async blob ({ root }) {
    const connection = await this.host.dial(this.hello.bulk.addresses.map((address) => multiaddr(address)))
    const bytes = await fetchBlob(connection, this.network, root)
    return { peer: connection.remotePeer.toString(), bytes: bytes.length }
  }

  /** Gossip orders whose text was changed after they were signed; stops when the node hangs up. */
  async tamper ({ count, template }) {
    let sent = 0
    for (; sent < count && this.connection.status === 'open'; sent += 1) {
      const { raw } = this.gossip.seal(template, { title: `as signed ${sent}` })
      try {
        await this.gossip.publish(Buffer.from(raw.toString().replace('as signed', 'as forged')))
      } catch (error) {
        if (!error.message.includes('NoPeersSubscribedToTopic')) throw error
        break // it hung up just now
      }
    }
    return { sent }
  }

  /** Announce a frame of this length on the link, and send so much of it. */
  async badFrame ({ length }) {
    const bytes = Buffer.alloc(4 + length)
    bytes.writeUInt32BE(length)
    await this.links.sendRaw(this.peer, bytes)
    return {}
  }

  /** Wait until the node closes the connection. */
  async closes () {
    await this.closed.take((peer) => peer === this.peer, SECONDS)
    return {}
  }

  /** Dial a node that does not want us now: either the dial fails, or the node hangs up. */
  async turnedAway () {
    try {
      await this.connect()
    } catch (error) {
      return { how: error.message }
    }
    return this.closes()
  }

  state () {
    return { account: this.key.account, network: this.network, refused: this.gossip.refused }
  }
}
