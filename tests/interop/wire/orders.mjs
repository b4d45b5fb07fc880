// docs/protocol.md, "Entries" and "Orders".
import {
  checkFields, decode, digest, encode, ensure, isHash, isInt, isOneOf, isPpm, isSignature, isText, isUInt
} from './canonical.mjs'
import { checkSignature, isAccount } from './identity.mjs'

const MAX_ENTRY_BYTES = 32_768
const isPositive = isInt(1)

const RECIPE = {
  inner: isOneOf('adamw', 'muon', 'sgd'),
  steps: isInt(1, 1_000),
  batch: isInt(1, 65_536),
  lr_e9: isPositive,
  beta1_ppm: isPpm,
  beta2_ppm: isPpm,
  weight_decay_ppm: isPpm,
  clip_ppm: isUInt,
  rewarm_steps: isUInt,
  outer_lr_ppm: isUInt,
  outer_momentum_ppm: isPpm,
  codec_bits: isInt(2, 8),
  codec_block: isInt(16, 4_096),
  codec_density_ppm: isPpm,
  precision: isOneOf('fp32', 'bf16'),
  schedule: isOneOf('constant', 'linear', 'cosine'),
  schedule_steps: isUInt,
  warmup_steps: isUInt,
  final_lr_ppm: isPpm
}

const JOB_POST = {
  kind: isOneOf('job_post'),
  author: isAccount,
  nonce: isUInt,
  expires_ms: isUInt,
  title: isText(1, 80),
  program: isHash,
  data: isHash,
  checkpoint: isHash,
  parameters: isPositive,
  tokens_per_unit: isUInt,
  recipe: (value) => checkFields('recipe', value, RECIPE) === undefined,
  device_class: (value) => typeof value === 'string' && /^[a-z0-9][a-z0-9.-]{0,31}$/.test(value),
  rounds: isInt(1, 10_000),
  units_per_round: isInt(1, 64),
  warm_rounds: isInt(0, 10_000),
  shards: isInt(1, 65_536),
  min_workers: isInt(1, 64),
  reserve_price: isPositive,
  unit_bond: isUInt,
  merit_ppm: isPpm,
  audit_fee: isUInt,
  audit_budget: isUInt,
  audit_floor_ppm: isPpm,
  bid_ms: isPositive,
  work_ms: isPositive,
  reveal_ms: isPositive,
  receipt_ms: isPositive,
  result_ms: isPositive,
  audit_ms: isPositive,
  hold_ms: isPositive,
  deadline_ms: isUInt
}

function entryId (body) {
  return digest('gdf/entry', body).toString('hex')
}

/** Return {id, body, raw} of an envelope whose author signed it for this network. */
export function openEntry (raw, network) {
  const envelope = decode(raw, MAX_ENTRY_BYTES)
  checkFields('envelope', envelope, { body: (value) => isAccount(value?.author), sig: isSignature })
  const body = encode(envelope.body) // the very bytes inside the envelope: those are canonical, too
  checkSignature(network, 'entry', envelope.body.author, body, envelope.sig)
  return { id: entryId(body), body: envelope.body, raw }
}

/** Return {id, body, raw} of an order; WireError unless it is a well-formed, signed and unexpired job post. */
export function openOrder (raw, network, nowMs) {
  const entry = openEntry(raw, network)
  checkFields('job_post', entry.body, JOB_POST)
  ensure(entry.body.expires_ms > nowMs, 'the order has expired')
  return entry
}

/** Sign a body; author is the key's account. */
export function seal (key, network, body) {
  const bytes = encode({ ...body, author: key.account })
  const raw = Buffer.from(`{"body":${bytes},"sig":"${key.sign(network, 'entry', bytes)}"}`)
  return { id: entryId(bytes), body: { ...body, author: key.account }, raw }
}
