"""One stream to a source of blobs: ask, wait, get (`/gdf/blob/1`)."""

from __future__ import annotations

import trio
from libp2p.abc import INetStream

from gdf_market.codec import encode
from gdf_market.errors import MalformedError, PeerError, ensure
from gdf_market.node import limits
from gdf_market.node.blob_server import ABSENT, FOUND, REQUEST, BlobRequest
from gdf_market.node.frames import StreamReader, frame, write
from gdf_market.node.meter import Meter


class AbsentError(PeerError):
    """The source does not hold the blob; no fault."""

    reason = "absent"


class TooSlowError(PeerError):
    """The source did not answer in time or could not be reached."""

    reason = "slow"


class _Arriving:
    """The reading side of a stream: holds what arrives to the agreed rate; a transfer that moves gets more time."""

    def __init__(self, stream: INetStream, meter: Meter) -> None:
        self._stream, self._meter = stream, meter
        self.scope = trio.CancelScope()
        self.patience_s = self.ends_s = 0.0
        self.count = 0

    async def read(self, count: int) -> bytes:
        data: bytes = await self._stream.read(count)
        self.count += len(data)
        await self._meter.spend(len(data))
        self.scope.deadline = min(self.ends_s, trio.current_time() + self.patience_s)
        return data


class Channel:
    """Requests and answers on one stream, one after the other; ``meter`` paces what arrives."""

    def __init__(self, stream: INetStream, network: str, meter: Meter) -> None:
        self._stream, self._network = stream, network
        self._arriving = _Arriving(stream, meter)
        # the meter paces instead of the reader's own bucket, which is for peers that send unasked
        self._reader = StreamReader(self._arriving, limits.Bucket(float(1 << 30), float(1 << 30)))

    async def ask(self, op: str, root: str, index: int = 0, *, max_bytes: int, patience_s: float) -> bytes:
        """Return the answer's payload; AbsentError, TooSlowError (nothing came for so long), or another PeerError."""
        request = BlobRequest(op=op, root=root, index=index, network=self._network)
        now, arriving = trio.current_time(), self._arriving
        arriving.count = 0
        arriving.patience_s, arriving.ends_s = patience_s, now + max(patience_s, limits.ANSWER_S)
        with trio.CancelScope(deadline=now + patience_s) as arriving.scope:
            await write(self._stream, frame(REQUEST, encode(request)))
            status, payload = await self._reader.frame(max_bytes)
            ensure(status != ABSENT, AbsentError(f"no blob {root}"))
            ensure(status == FOUND, MalformedError(f"an answer of kind {status}"))
            return payload
        raise TooSlowError(f"no byte in {patience_s:.0f} s, or no answer in {limits.ANSWER_S:.0f} s")

    @property
    def arrived_bytes(self) -> int:
        """What came of the last answer so far."""
        return self._arriving.count

    async def close(self) -> None:
        """Reset the stream; a peer cannot delay this."""
        with trio.CancelScope(shield=True), trio.move_on_after(2):
            await self._stream.reset()
