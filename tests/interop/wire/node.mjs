// The client: a js-libp2p host that speaks gdf-market's protocols.
import './polyfill.mjs'
import { randomBytes } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
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
import { ensure, WireError } from './canonical.mjs'
import { Chain } from './chain.mjs'
import { Key } from './identity.mjs'
import { parseInvite } from './invite.mjs'
import { Links } from './link.mjs'
import { Mailbox } from './mailbox.mjs'
import { openOrder, seal } from './orders.mjs'

const SECONDS = 20

export class Client {
  /** Make a key, and a host with it for the network of an invite. */
  static async start (inviteText) {
    const client = new Client()
    client.invite = parseInvite(inviteText)
    client.network = client.invite.network
    client.topic = `/gdf/${client.network.slice(0, 16)}/orders/1`
    client.key = new Key(randomBytes(32))
    client.chain = new Chain(client.network, client.invite.genesis)
    client.orders = new Mailbox('order')
    client.hellos = new Mailbox('hello')
    client.messages = new Mailbox('answer')
    client.closed = new Mailbox('end of the connection')
    client.refused = [] // why messages on the topic were not taken
    client.statuses = 0
    client.host = await client.#makeHost()
    client.links = new Links(client.host, client.network, client.key.account, {
      onHello: (peer, hello) => client.hellos.put({ peer, hello }),
      onMessage: (peer, message) => client.#onMessage(peer, message)
    })
    await client.links.listen()
    return client
  }

  async #makeHost () {
    const host = await createLibp2p({
      privateKey: await generateKeyPairFromSeed('Ed25519', this.key.seed),
      addresses: { listen: [] },
      transports: [tcp()],
      connectionEncrypters: [noise()],
      streamMuxers: [yamux()],
      services: { identify: identify(), ping: ping(), pubsub: gossipsub() }
    })
    host.addEventListener('peer:disconnect', (event) => this.closed.put(event.detail.toString()))
    const { pubsub } = host.services
    pubsub.topicValidators.set(this.topic, (peer, message) => this.#judge(peer, message))
    return host
  }

  /** Take an order into the mailbox and relay it, or say why not. */
  #judge (peer, message) {
    try {
      const order = openOrder(Buffer.from(message.data), this.network, Date.now())
      this.orders.put({ ...order, from: message.from.toString(), via: peer.toString() })
      return 'accept'
    } catch (error) {
      if (!(error instanceof WireError)) throw error
      this.refused.push(error.message)
      return 'reject'
    }
  }

  #onMessage (peer, message) {
    if (message.type === 'sync_response') this.messages.put({ peer, message })
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
    const { agentVersion, protocolVersion, protocols, peerId } = await this.host.services.identify.identify(this.connection)
    return { peer: peerId.toString(), agentVersion, protocolVersion, protocols }
  }

  async ping () {
    return { ms: await this.host.services.ping.ping(this.connection.remotePeer) }
  }

  /** Join the topic; returns once the node reads it, too, and our stream to it is open: else a message would be lost. */
  async join () {
    const { pubsub } = this.host.services
    const reads = () => pubsub.getSubscribers(this.topic).some((peer) => peer.toString() === this.peer)
    pubsub.subscribe(this.topic)
    for (let waited = 0; !(reads() && pubsub.streamsOutbound.has(this.peer)); waited += 20) {
      ensure(waited < SECONDS * 1_000, 'the node does not read the topic')
      await delay(20)
    }
    return { topic: this.topic, protocol: pubsub.streamsOutbound.get(this.peer).protocol }
  }

  /** Wait for the order with this title. */
  async order ({ title, seconds = SECONDS }) {
    const { id, body, from, via, raw } = await this.orders.take((order) => order.body.title === title, seconds)
    this.seen = body
    return { id, body, from, via, bytes: raw.length }
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
        const { message } = await this.messages.take(({ peer }) => peer === this.peer)
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
  async publish ({ title, ...changes }) {
    this.own = this.#seal({ title, ...changes })
    const { recipients } = await this.host.services.pubsub.publish(this.topic, this.own.raw)
    return { id: this.own.id, recipients: recipients.map(String) }
  }

  #seal (changes) {
    const nonce = randomBytes(6).readUIntBE(0, 6)
    return seal(this.key, this.network, { ...this.seen, nonce, expires_ms: Date.now() + 600_000, ...changes })
  }

  /** Send the last own order to the ledger. */
  async submit () {
    const envelope = JSON.parse(this.own.raw)
    await this.links.send(this.peer, { entries: [envelope], type: 'entries' })
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
    this.seen = template
    let sent = 0
    for (; sent < count && this.connection.status === 'open'; sent += 1) {
      const { raw } = this.#seal({ title: `as signed ${sent}` })
      const altered = Buffer.from(raw.toString().replace('as signed', 'as forged'))
      try {
        await this.host.services.pubsub.publish(this.topic, altered)
      } catch (error) {
        if (!error.message.includes('NoPeersSubscribedToTopic')) throw error
        break
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
  async closes ({ seconds = SECONDS } = {}) {
    const start = performance.now()
    await this.closed.take((peer) => peer === this.peer, seconds)
    return { ms: performance.now() - start }
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
    return { account: this.key.account, network: this.network, connected: this.connection?.status === 'open', refused: this.refused }
  }
}
