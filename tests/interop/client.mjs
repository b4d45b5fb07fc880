// An independent client of gdf-market, for tests: a line of JSON on stdin asks, a line on stdout answers.
//   {"op":"start","invite":"gdf1-…"}   then any method of Client, with its arguments beside "op"
import { createInterface } from 'node:readline'
import { Client } from './wire/node.mjs'

const OPERATIONS = new Set([
  'connect', 'identify', 'ping', 'join', 'order', 'again', 'link', 'sync', 'find', 'publish', 'submit', 'blob', 'tamper',
  'badFrame', 'closes', 'turnedAway', 'state'
])

let client

async function answer ({ op, ...given }) {
  if (op === 'start') {
    client = await Client.start(given.invite)
    return client.state()
  }
  if (!OPERATIONS.has(op)) throw new Error(`no operation ${op}`)
  return client[op](given)
}

for await (const line of createInterface({ input: process.stdin })) {
  let result
  try {
    result = { ok: await answer(JSON.parse(line)) }
  } catch (error) {
    result = { error: `${error.name}: ${error.message}` }
    console.error(error)
  }
  process.stdout.write(`${JSON.stringify(result)}\n`)
}
process.exit(0)
