// docs/protocol.md, "Frames".
import { ensure } from './canonical.mjs'

export const MAX_PAYLOAD = 65_536

export function frame (kind, payload) {
  const head = Buffer.alloc(5)
  head.writeUInt32BE(payload.length + 1)
  head[4] = kind
  return Buffer.concat([head, payload])
}

/** Write to a stream, and wait while it takes no more. */
export async function write (stream, bytes) {
  if (!stream.send(bytes)) await stream.onDrain()
}

/** Yield [kind, payload] of each frame on a stream until it ends. */
export async function * frames (stream, maxPayload = MAX_PAYLOAD) {
  let pieces = []
  let held = 0
  let wanted = 4
  for await (const chunk of stream) {
    pieces.push(Buffer.from(chunk.subarray()))
    held += chunk.byteLength
    while (held >= wanted) {
      const buffer = Buffer.concat(pieces, held)
      const length = buffer.readUInt32BE()
      ensure(length >= 1 && length <= maxPayload + 1, `a frame of ${length} bytes`)
      wanted = 4 + length
      pieces = [buffer]
      if (held < wanted) break
      yield [buffer[4], buffer.subarray(5, wanted)]
      pieces = [buffer.subarray(wanted)]
      held -= wanted
      wanted = 4
    }
  }
}
