// docs/protocol.md, "Orders": reading the topic and writing to it.
import { randomBytes } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { ensure, WireError } from './canonical.mjs'
import { Mailbox } from './mailbox.mjs'
import { openOrder, seal } from './orders.mjs'

const SECONDS = 60 // patience on a busy machine
const ORDER_MS = 600_000 // how long an own order is open

/** The id of a message: the sender's peer id and the sequence number.  js-libp2p's own has the sender's key in its place. */
export function messageId ({ from, sequenceNumber }) {
  const number = Buffer.alloc(8)
  number.writeBigUInt64BE(sequenceNumber)
  return Buffer.concat([from.toMultihash().bytes, number])
}

export class OrderGossip {
  constructor (pubsub, network, key) {
    this.pubsub = pubsub
    this.network = network
    this.key = key
    this.topic = `/gdf/${network.slice(0, 16)}/orders/1`
    this.orders = new Mailbox('order')
    this.copies = new Mailbox('copy of an order') // ids of the messages that brought one
    this.resent = new Mailbox('message that was asked for again')
    this.refused = [] // why messages on the topic were not taken
    pubsub.topicValidators.set(this.topic, (peer, message) => this.#judge(peer, message))
    const receive = pubsub.handleReceivedRpc.bind(pubsub)
    pubsub.handleReceivedRpc = (from, rpc) => {
      for (const { from: sender, seqno, data } of rpc.messages ?? []) {
        if (Buffer.concat([sender, seqno]).toString('hex') === this.wanted) this.resent.put(data.length)
      }
      return receive(from, rpc)
    }
  }

  /** Take an order and relay it, or say why not. */
  #judge (peer, message) {
    try {
      const order = openOrder(Buffer.from(message.data), this.network, Date.now())
      this.copies.put(messageId(message))
      this.orders.put({ ...order, from: message.from.toString(), via: peer.toString() })
      return 'accept'
    } catch (error) {
      if (!(error instanceof WireError)) throw error
      this.refused.push(error.message)
      return 'reject'
    }
  }

  /** Join the topic; returns once a peer reads it, too, and our stream to it is open: else a message would be lost. */
  async join (peer) {
    const { pubsub, topic } = this
    const reads = () => pubsub.getSubscribers(topic).some((one) => one.toString() === peer)
    pubsub.subscribe(topic)
    for (let waited = 0; !(reads() && pubsub.streamsOutbound.has(peer)); waited += 20) {
      ensure(waited < SECONDS * 1_000, 'the node does not read the topic')
      await delay(20)
    }
    return { topic, protocol: pubsub.streamsOutbound.get(peer).protocol }
  }

  /** Ask a peer for an order again by the id of its message (IWANT), while that is in its cache of some seconds. */
  async again (peer, tries = 4) {
    for (; tries > 0; tries -= 1) {
      const id = await this.copies.take() // an old copy is no longer there; its author sends new ones
      this.wanted = id.toString('hex')
      const control = { graft: [], prune: [], ihave: [], iwant: [{ messageIDs: [id] }], idontwant: [] }
      this.pubsub.sendRpc(peer, { subscriptions: [], messages: [], control })
      const bytes = await this.resent.take(undefined, 2).catch(() => null)
      if (bytes !== null) return { idBytes: id.length, bytes }
    }
    throw new Error('the node does not know its message by this id')
  }

  /** Sign an order like another one, as our own. */
  seal (template, changes) {
    const nonce = randomBytes(6).readUIntBE(0, 6)
    return seal(this.key, this.network, { ...template, nonce, expires_ms: Date.now() + ORDER_MS, ...changes })
  }

  async publish (raw) {
    const { recipients } = await this.pubsub.publish(this.topic, raw)
    return recipients.map(String)
  }
}
