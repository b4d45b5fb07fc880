// Checks a proof file (docs/proofs.md) step by step, in the order and with the rules of `gdf-market ledger check`.
import { Refused, canonical, digest, encode, ensure, fromHex, join, publicKey, sha256, toHex, verifySignature } from "./canonical.js";

const MAX_BYTES = 16 << 20;
const MAX = { links: 10_000, closing: 256, descendants: 256, headers: 2_048, path: 9, validators: 100 };

// ---- forms

const text = (pattern) => (value) => typeof value === "string" && pattern.test(value);
const uint = (value) => Number.isSafeInteger(value) && value >= 0;
const positive = (value) => uint(value) && value > 0;
const raw = (value) => value !== undefined;
const hash = text(/^[0-9a-f]{64}$/);
const signature = text(/^[0-9a-f]{128}$/);
const account = text(/^12D3KooW[1-9A-HJ-NP-Za-km-z]{44}$/);
const bool = (value) => typeof value === "boolean";
const panel = (value) => positive(value) && value <= 32;
const list = (of, most, least = 0) => (value) =>
  Array.isArray(value) && value.length >= least && value.length <= most && value.every(of);
const record = (fields) => (value) =>
  value !== null && typeof value === "object" && !Array.isArray(value)
  && Object.keys(value).sort().join() === Object.keys(fields).sort().join()
  && Object.entries(fields).every(([name, holds]) => holds(value[name]));

const CERTIFICATE = {
  type: text(/^certificate$/), epoch: uint, kind: text(/^(notar|skip|final)$/), slot: uint, hash: text(/^([0-9a-f]{64})?$/),
  signers: list((index) => uint(index) && index < MAX.validators, MAX.validators), sigs: list(signature, MAX.validators),
};
const GENESIS = {
  name: text(/^[a-z0-9][a-z0-9-]{0,39}$/), test_network: bool, time_ms: uint,
  allocations: list(record({ account, balance: uint, stake: uint }), 1_000, 1),
  validators: list(account, MAX.validators, 1), block_ms: uint, heartbeat_ms: uint, audit_bond: uint,
  committee: panel, arbiters: panel, max_void_rounds: uint,
  staking: record({ epoch_blocks: positive, bond: uint, floor: positive, silent_epochs: positive, evidence_epochs: positive }),
  entry_fee: uint, rules: uint,
};
const LINK = {
  header: raw, closing: list(raw, MAX.closing), certificate: record(CERTIFICATE), validators: list(account, MAX.validators),
};
const COMMON = { genesis: record(GENESIS), links: list(record(LINK), MAX.links), certificate: record(CERTIFICATE) };
const ENTRY_FORM = "gdf-entry-proof/2";
const HEAD_FORM = "gdf-head-proof/2";
const FORMS = {
  [ENTRY_FORM]: {
    ...COMMON, format: raw, entry: raw, position: uint, path: list(hash, MAX.path), header: raw, sig: signature,
    descendants: list(raw, MAX.descendants),
  },
  [HEAD_FORM]: { ...COMMON, format: raw, headers: list(raw, MAX.headers, 1) },
};
const HEADER = record({
  network: hash, height: uint, slot: uint, epoch: uint, parent: hash, parent_slot: uint, proposer: account, time_ms: uint,
  entries_root: hash, entry_count: uint, state_root: hash, validators: hash, beacon: hash, vrf_proof: text(/^[0-9a-f]{160}$/),
});

function read(data) {
  ensure(data.length <= MAX_BYTES + 1, `${data.length} bytes; at most ${MAX_BYTES} are read`);
  ensure(data.at(-1) === 10, "the file does not end as a proof does; it is cut off or altered");
  let whole, proof;
  try {
    whole = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data.subarray(0, -1));
    proof = JSON.parse(whole);
  } catch {
    throw new Refused("the file is not JSON in UTF-8");
  }
  const form = FORMS[proof?.format];
  ensure(form !== undefined, "the file is of no form of proof that is known here");
  ensure(canonical(proof) === whole, "the file is not the canonical encoding of what it says");
  for (const [name, holds] of Object.entries(form)) ensure(holds(proof[name]), `"${name}" is not what a proof has there`);
  ensure(Object.keys(proof).length === Object.keys(form).length, "the file holds more than a proof does");
  return proof;
}

// ---- headers and certificates

async function openHeader(value, network) {
  ensure(HEADER(value), "what stands for a header is none");
  ensure(value.network === network, `block of network ${value.network}, this is ${network}`);
  return { header: value, hash: await digest("gdf/block", encode(value)) };
}

const quorum = (count) => Math.floor((2 * count) / 3) + 1;

/** Open consecutive headers of one epoch, whose first block builds on `root`. */
async function openHeaders(raws, epoch, network, root) {
  const places = [];
  for (const each of raws) {
    const place = await openHeader(each, network);
    const { header } = place;
    ensure(header.epoch === epoch.number, `block ${header.height} says epoch ${header.epoch}; its epoch is ${epoch.number}`);
    ensure(header.height >= epoch.first, `block ${header.height} is before epoch ${epoch.number}, which begins with ${epoch.first}`);
    ensure(
      (header.height === epoch.first) === (header.parent === root),
      `block ${header.height} does not say where epoch ${epoch.number} begins`,
    );
    if (places.length) await follows(header, places.at(-1), epoch);
    places.push(place);
  }
  const height = places[0].header.height;
  ensure(height <= epoch.last, `block ${height} is a closing block, not one of the ledger`);
  return places;
}

async function follows(header, parent, epoch) {
  const before = parent.header;
  ensure(
    header.parent === parent.hash && header.parent_slot === before.slot && header.height === before.height + 1
      && header.slot > before.slot && header.time_ms > before.time_ms,
    `block ${header.height} of slot ${header.slot} does not follow block ${before.height}`,
  );
  const empty = toHex(await sha256(new Uint8Array(0)));
  ensure(
    header.height <= epoch.last
      || (header.entry_count === 0 && header.entries_root === empty
        && header.state_root === before.state_root && header.validators === before.validators),
    `block ${header.height} is beyond the end of epoch ${epoch.number} and not empty`,
  );
}

/** Refuse unless a quorum of an epoch's set signed that a block is final. */
async function checkFinal(certificate, place, epoch, network) {
  ensure(certificate.kind === "final", `a ${certificate.kind} certificate finalizes nothing`);
  ensure(
    certificate.slot === place.header.slot && certificate.hash === place.hash,
    `the certificate is of block ${certificate.hash}, not of ${place.hash}`,
  );
  ensure(certificate.epoch === epoch.number, `certificate of epoch ${certificate.epoch}, now ${epoch.number}`);
  const { signers, sigs } = certificate;
  ensure(
    signers.length === sigs.length && signers.every((signer, at) => at === 0 || signers[at - 1] < signer)
      && signers.every((signer) => signer < epoch.validators.length),
    "signers of a certificate are not distinct validators with a signature each",
  );
  const needed = quorum(epoch.validators.length);
  ensure(signers.length >= needed, `${signers.length} signatures; ${needed} are a quorum`);
  const { kind, slot, hash: voted } = certificate;
  const ballot = encode({ epoch: certificate.epoch, hash: voted, kind, slot });
  for (const [at, signer] of signers.entries()) {
    await verifySignature(network, "vote", epoch.validators[signer], ballot, sigs[at]);
  }
}

async function checkSet(validators) {
  for (const each of validators) await publicKey(each);
  ensure(new Set(validators).size === validators.length, "a validator set lists one validator twice");
}

function epochOf(genesis, number, validators) {
  const blocks = genesis.staking.epoch_blocks;
  return { number, first: number * blocks + 1, last: (number + 1) * blocks, validators };
}

const leader = (epoch, slot) => epoch.validators[slot % epoch.validators.length];
const described = (set) => `${set.length} validators, a quorum is ${quorum(set.length)}`;

/** Refuse unless a leaf is number `index` of `size` under a root (RFC 9162, section 2.1.3.2). */
async function checkInclusion(leaf, index, size, path, root) {
  ensure(index < size, `inclusion proof of leaf ${index} in a tree of ${size}`);
  const node = (left, right) => sha256(join(Uint8Array.of(1), left, right));
  let [at, last, running] = [index, size - 1, await sha256(join(Uint8Array.of(0), leaf))];
  for (const sibling of path.map(fromHex)) {
    ensure(last > 0, `inclusion proof of ${path.length} hashes is too long for ${size} leaves`);
    if (at % 2 === 1 || at === last) {
      running = await node(sibling, running);
      while (at % 2 === 0 && at > 0) [at, last] = [Math.floor(at / 2), Math.floor(last / 2)];
    } else {
      running = await node(running, sibling);
    }
    [at, last] = [Math.floor(at / 2), Math.floor(last / 2)];
  }
  ensure(last === 0, `inclusion proof of ${path.length} hashes is too short for ${size} leaves`);
  ensure(toHex(running) === root, `leaf ${index} is not under root ${root.slice(0, 16)}…`);
}

// ---- the steps

class Check {
  constructor(data, network) {
    Object.assign(this, { data, network, roots: [], places: [], entry: null });
  }

  file() {
    this.proof = read(this.data);
    this.isEntry = this.proof.format === ENTRY_FORM;
    return `proof of ${this.isEntry ? "an entry" : "a head and its ancestor"}, ${this.data.length} bytes`;
  }

  async genesis() {
    const found = await digest("gdf/genesis", encode(this.proof.genesis));
    ensure(found === this.network, `the proof is of network ${found}, not of ${this.network}`);
    return `network ${this.proof.genesis.name} ${found}`;
  }

  async validators() {
    const { genesis } = this.proof;
    await checkSet(genesis.validators);
    this.epoch = epochOf(genesis, 0, genesis.validators);
    this.root = this.network;
    return `the genesis names ${described(this.epoch.validators)}`;
  }

  async epochs() {
    this.roots.push(this.root);
    let changed = 0;
    for (const [number, link] of this.proof.links.entries()) {
      try {
        await this.take(link);
      } catch (error) {
        if (error instanceof Refused) error.message = `the end of epoch ${number}: ${error.message}`;
        throw error;
      }
      this.roots.push(this.root);
      changed += link.validators.length > 0 ? 1 : 0;
    }
    const { number, validators } = this.epoch;
    if (!number) return "the block is of epoch 0, the set is the genesis's";
    return `${number} epochs ended by certified blocks, the set changed ${changed} times; epoch ${number} has ${described(validators)}`;
  }

  /** Go on to the next epoch by what shows how this one ended. */
  async take(link) {
    const places = await openHeaders([link.header, ...link.closing], this.epoch, this.network, this.root);
    const { header } = places[0];
    ensure(
      header.height === this.epoch.last,
      `block ${header.height} does not end epoch ${this.epoch.number}; ${this.epoch.last} does`,
    );
    await checkFinal(link.certificate, places.at(-1), this.epoch, this.network);
    const next = link.validators.length ? link.validators : this.epoch.validators;
    ensure(canonical(link.validators) !== canonical(this.epoch.validators), "a set that did not change is not listed again");
    ensure(
      (await digest("gdf/validators", encode(next))) === header.validators,
      `block ${header.height} names another set of validators than these ${next.length}`,
    );
    await checkSet(next);
    this.epoch = epochOf(this.proof.genesis, this.epoch.number + 1, next);
    this.root = places[0].hash;
  }

  async headers() {
    const { proof, epoch } = this;
    this.places = this.isEntry
      ? await openHeaders([proof.header, ...proof.descendants], epoch, this.network, this.root)
      : await this.span(proof.headers);
    const [first, last] = [this.places[0].header, this.places.at(-1).header];
    const more = this.places.length - 1;
    return `block ${first.height}${more ? ` and the ${more} after it, to ${last.height}` : ""}`;
  }

  /** Open consecutive headers epoch by epoch; each epoch ends with the boundary block of its link. */
  async span(raws) {
    let { height } = (await openHeader(raws[0], this.network)).header;
    ensure(height >= 1, "heights begin with 1");
    const { genesis } = this.proof;
    const places = [];
    let left = raws;
    for (let number = Math.floor((height - 1) / genesis.staking.epoch_blocks); number < this.epoch.number; number += 1) {
      const epoch = epochOf(genesis, number, []);
      const count = epoch.last - height + 1;
      places.push(...(await openHeaders(left.slice(0, count), epoch, this.network, this.roots[number])));
      ensure(places.at(-1).hash === this.roots[number + 1], `block ${places.at(-1).header.height} is not the one that ended epoch ${number}`);
      [left, height] = [left.slice(count), epoch.last + 1];
      ensure(left.length > 0, `the headers end before epoch ${number + 1}`);
    }
    return [...places, ...(await openHeaders(left, this.epoch, this.network, this.root))];
  }

  async certificate() {
    const { certificate } = this.proof;
    const place = this.places.at(-1);
    await checkFinal(certificate, place, this.epoch, this.network);
    const signed = `signed by ${certificate.signers.length} of ${this.epoch.validators.length} validators`;
    if (place.header.height > this.epoch.last) {
      return `block ${this.epoch.last}, the last of epoch ${this.epoch.number}, is final by a closing block ${signed}`;
    }
    return `block ${place.header.height} is final, ${signed}`;
  }

  async proposer() {
    const { header } = this.places[0];
    const due = leader(this.epoch, header.slot);
    ensure(header.proposer === due, `slot ${header.slot} belongs to ${due}, not to ${header.proposer}`);
    await verifySignature(this.network, "block", due, encode(this.proof.header), this.proof.sig);
    return `block ${header.height} is signed by ${due}`;
  }

  async inclusion() {
    const { header } = this.places[0];
    const { entry, position, path } = this.proof;
    await checkInclusion(encode(entry), position, header.entry_count, path, header.entries_root);
    return `entry ${position + 1} of ${header.entry_count} in block ${header.height}`;
  }

  async author() {
    const envelope = this.proof.entry;
    ensure(record({ body: raw, sig: signature })(envelope), "the entry is no body with a signature");
    const { body } = envelope;
    ensure(account(body?.author) && text(/^[a-z_]+$/)(body.kind), "the entry names no author, or is of no kind");
    const data = encode(body);
    await verifySignature(this.network, "entry", body.author, data, envelope.sig);
    this.entry = { id: await digest("gdf/entry", data), body };
    return `${body.kind} ${this.entry.id} is signed by ${body.author}`;
  }
}

const STEPS = ["file", "genesis", "validators", "epochs", "headers", "certificate"];
const ENTRY_STEPS = [["proposer", "proposer"], ["inclusion", "inclusion"], ["entry", "author"]];

/** Check a proof's bytes against a network id; calls `say` with each {name, ok, detail}, and ends at the first that fails.
 *
 * Returns {holds, steps, height, entry}; the last two are null unless everything holds.
 */
export async function check(data, network, say = () => undefined) {
  const run = new Check(data, network);
  const steps = [];
  const plan = STEPS.map((name) => [name, name]);
  while (plan.length) {
    const [name, method] = plan.shift();
    let step;
    try {
      step = { name, ok: true, detail: await run[method]() };
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      step = { name, ok: false, detail: error.message };
    }
    steps.push(step);
    await say(step);
    if (!step.ok) return { holds: false, steps, height: null, entry: null };
    if (name === "certificate" && run.isEntry) plan.push(...ENTRY_STEPS);
  }
  return { holds: true, steps, height: run.places[0].header.height, entry: run.entry };
}
