// Check the example bytes of docs/protocol.md with this implementation: node vectors.mjs FILE
import { readFileSync } from 'node:fs'
import { canonicalText, ensure } from './wire/canonical.mjs'
import { Chain } from './wire/chain.mjs'
import { frame } from './wire/frames.mjs'
import { Key } from './wire/identity.mjs'
import { openHello } from './wire/link.mjs'
import { openOrder, seal } from './wire/orders.mjs'

const vectors = JSON.parse(readFileSync(process.argv[2], 'utf8'))
const { network, account, order, hello } = vectors

const key = new Key(Buffer.from(vectors.seed, 'hex'))
ensure(key.account === account && key.public.toString('hex') === vectors.public_key, 'the account is another')

const opened = openOrder(Buffer.from(order), network, 0)
ensure(opened.id === vectors.order_id, 'the id of the order is another')
ensure(seal(key, network, opened.body).raw.toString() === order, 'its signature is another')

openHello(Buffer.from(hello), network, account)
ensure(frame(0, Buffer.from(hello)).subarray(0, 5).toString('hex') === vectors.hello_frame_head, 'the frame of the hello is another')
const request = canonicalText({ type: 'sync_request', height: 1 })
ensure(request === vectors.sync_request, 'the request is another')
ensure(frame(1, Buffer.from(request)).toString('hex') === vectors.sync_request_frame, 'the frame of the request is another')

const chain = new Chain(network, { validators: [account], staking: { epoch_blocks: 10 } })
chain.take(JSON.parse(vectors.sync_response).blocks)
ensure(chain.blocks[0]?.hash === vectors.block_hash && chain.certificates === 1, 'the block is another')
ensure(chain.blocks[0].entries[0] === vectors.order_id, 'its entry is another')

/** An implementation that accepts everything would have passed so far. */
function refuses (what, attempt) {
  try {
    attempt()
  } catch {
    return
  }
  throw new Error(`${what} is accepted`)
}

const fresh = () => new Chain(network, { validators: [account], staking: { epoch_blocks: 10 } })
refuses('an altered order', () => openOrder(Buffer.from(order.replace('Tiny', 'Huge')), network, 0))
refuses('an order of another network', () => openOrder(Buffer.from(order), 'cd'.repeat(32), 0))
refuses('an order with a space', () => openOrder(Buffer.from(order.replace(',', ', ')), network, 0))
refuses('an expired order', () => openOrder(Buffer.from(order), network, opened.body.expires_ms))
refuses('an altered voucher', () => openHello(Buffer.from(hello.replace('tcp/4002', 'tcp/4003')), network, account))
refuses('a hello of somebody else', () => openHello(Buffer.from(hello), network, `${account.slice(0, -1)}C`))
for (const [field, text] of [['a header', '"height":1'], ['an entry', 'Tiny'], ['a certificate', '"signers":[0]']]) {
  const altered = vectors.sync_response.replace(text, { '"height":1': '"height":2', Tiny: 'Huge', '"signers":[0]': '"signers":[1]' }[text])
  refuses(`${field} that was altered`, () => fresh().take(JSON.parse(altered).blocks))
}
console.log('all examples verify, and none that was altered does')
