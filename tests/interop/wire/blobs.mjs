// docs/protocol.md, "Blobs": a small reader of one blob from one source, everything checked by hash.
import { checkFields, decode, encode, ensure, isHash, isListOf, isOneOf, isUInt, sha256 } from './canonical.mjs'
import { frame, frames, write } from './frames.mjs'

const PROTOCOL = '/gdf/blob/1'
const CHUNK_BYTES = 1_048_576
const FOUND = 0

const MANIFEST = { chunk: isOneOf(CHUNK_BYTES), hashes: isListOf(isHash, 0, 16_384), size: isUInt }

/** Return the bytes of a blob, fetched over a connection to a bulk host. */
export async function fetchBlob (connection, network, root) {
  const stream = await connection.newStream(PROTOCOL)
  const answers = frames(stream, 16_384 * 67 + 64)
  const ask = async (op, index) => {
    await write(stream, frame(0, encode({ index, network, op, root })))
    const { value, done } = await answers.next()
    ensure(!done, 'the source ended the stream')
    ensure(value[0] === FOUND, `the source has no such ${op}`)
    return value[1]
  }
  const raw = await ask('manifest', 0)
  ensure(sha256(raw).toString('hex') === root, 'the manifest is of another blob')
  const manifest = decode(raw, 16_384 * 67 + 64)
  checkFields('manifest', manifest, MANIFEST)
  const chunks = []
  for (const [index, hash] of manifest.hashes.entries()) {
    const chunk = await ask('chunk', index)
    ensure(sha256(chunk).toString('hex') === hash, `chunk ${index} has another hash`)
    chunks.push(chunk)
  }
  await stream.close()
  const bytes = Buffer.concat(chunks)
  ensure(bytes.length === manifest.size, `${bytes.length} bytes; the manifest says ${manifest.size}`)
  return bytes
}
