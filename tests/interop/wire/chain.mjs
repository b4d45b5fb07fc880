// docs/protocol.md, "Blocks": following a chain from its genesis by hashes, signatures and certificates.
import { checkFields, digest, encode, ensure, isHash, isHex, isInt, isListOf, isSignature, isUInt, sha256 } from './canonical.mjs'
import { checkSignature, isAccount } from './identity.mjs'
import { openEntry } from './orders.mjs'

const HEADER = {
  network: isHash,
  height: isUInt,
  slot: isUInt,
  epoch: isUInt,
  parent: isHash,
  parent_slot: isUInt,
  proposer: isAccount,
  time_ms: isUInt,
  entries_root: isHash,
  entry_count: isUInt,
  state_root: isHash,
  validators: isHash,
  beacon: isHash,
  vrf_proof: isHex(160)
}

const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value)
const BLOCK = { type: (value) => value === 'proposal', header: isObject, sig: isSignature, entries: isListOf(isObject, 0, 512) }
const CERTIFICATE = {
  type: (value) => value === 'certificate',
  epoch: isUInt,
  kind: (value) => value === 'final', // the only kind that travels with blocks
  slot: isUInt,
  hash: isHash,
  signers: isListOf(isInt(0, 99), 1, 100),
  sigs: isListOf(isSignature, 1, 100)
}

/** Root of RFC 9162's tree over these leaves. */
export function merkleRoot (leaves) {
  if (leaves.length === 0) return sha256()
  let level = leaves.map((leaf) => sha256(Buffer.from([0]), leaf))
  while (level.length > 1) {
    const next = []
    for (let i = 0; i + 1 < level.length; i += 2) next.push(sha256(Buffer.from([1]), level[i], level[i + 1]))
    if (level.length % 2 === 1) next.push(level.at(-1))
    level = next
  }
  return level[0]
}

const setHash = (validators) => digest('gdf/validators', encode(validators)).toString('hex')

/** A chain as far as it was verified.  Its set of validators does not change here: that would need links. */
export class Chain {
  constructor (network, genesis) {
    this.network = network
    this.validators = genesis.validators
    this.perEpoch = genesis.staking.epoch_blocks
    this.blocks = [] // {height, hash, slot, entries: ids} of the ledger's blocks, in order from height 1
    this.epoch = 0
    this.pending = [] // blocks of the current epoch that no certificate covers yet
    this.tip = { hash: network, slot: 0, height: 0, time_ms: 0 }
    this.certificates = 0
    this.closing = 0
  }

  /** The next height to ask for. */
  get next () {
    return this.blocks.length + 1
  }

  /** The height of the epoch's boundary block. */
  get #last () {
    return (this.epoch + 1) * this.perEpoch
  }

  /** Take the blocks of one sync_response in order; WireError for the first that does not hold. */
  take (items) {
    for (const item of items) {
      checkFields('sync block', item, { block: isObject, certificate: (value) => value === null || isObject(value) })
      const block = this.#openBlock(item.block)
      this.#follow(block)
      this.pending.push(block)
      if (item.certificate !== null) {
        this.#checkCertificate(item.certificate, block)
        this.#finalize()
      }
    }
  }

  #openBlock (proposal) {
    checkFields('block', proposal, BLOCK)
    const { header } = proposal
    checkFields('header', header, HEADER)
    const bytes = encode(header)
    ensure(header.network === this.network, 'a block of another network')
    checkSignature(this.network, 'block', header.proposer, bytes, proposal.sig)
    const leader = this.validators[header.slot % this.validators.length]
    ensure(header.proposer === leader, `slot ${header.slot} belongs to ${leader}`)
    const entries = proposal.entries.map(encode)
    ensure(header.entry_count === entries.length && header.entries_root === merkleRoot(entries).toString('hex'),
      `the entries of block ${header.height} are not those of its header`)
    ensure(header.validators === setHash(this.validators), 'the set of validators changes; ask for links')
    const ids = entries.map((raw) => openEntry(raw, this.network).id)
    return { ...header, hash: digest('gdf/block', bytes).toString('hex'), entries: ids }
  }

  #follow (block) {
    const before = this.tip
    ensure(block.epoch === this.epoch, `block ${block.height} says epoch ${block.epoch}; now is ${this.epoch}`)
    ensure(block.parent === before.hash && block.height === before.height + 1,
      `block ${block.height} does not hang on block ${before.height}`)
    ensure(block.parent_slot === before.slot && block.slot > before.slot && block.time_ms > before.time_ms,
      `block ${block.height} goes back in slots or time`)
    ensure(block.height <= this.#last || block.entry_count === 0, 'a closing block with entries')
    this.tip = block
  }

  #checkCertificate (certificate, block) {
    checkFields('certificate', certificate, CERTIFICATE)
    const { epoch, kind, slot, hash, signers, sigs } = certificate
    ensure(hash === block.hash && slot === block.slot && epoch === block.epoch, 'a certificate of another block')
    ensure(signers.length === sigs.length && signers.every((at, i) => i === 0 || at > signers[i - 1]), 'signers are not distinct')
    ensure(signers.length >= Math.floor(2 * this.validators.length / 3) + 1, `${signers.length} signatures are no quorum`)
    const ballot = encode({ epoch, hash, kind, slot })
    signers.forEach((at, i) => checkSignature(this.network, 'vote', this.validators[at], ballot, sigs[i]))
    this.certificates += 1
  }

  #finalize () {
    for (const block of this.pending) {
      if (block.height <= this.#last) this.blocks.push(block)
      else this.closing += 1
    }
    this.pending = []
    if (this.tip.height >= this.#last) {
      this.tip = this.blocks.at(-1) // the next epoch builds on the boundary block, not on closing ones
      this.epoch += 1
    }
  }
}
