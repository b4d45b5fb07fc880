"""What of a pubsub message is looked at: control that a peer could make this node work, answer or remember by is cut.

Rules kept here:
1. Control is followed for the one topic; whatever names another is dropped, so that no table grows with made-up names.
2. Nobody is dialled because a PRUNE names them.
3. A message is sent again to one peer at most a few times, whatever it asks, and answers are bounded in bytes.
4. Ids and changes of subscription are metered; beyond the rate it is a flood.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from libp2p.pubsub.pb import rpc_pb2

from gdf_market.errors import FloodError, ensure
from gdf_market.node import limits

SizeOf = Callable[[bytes], int]  # bytes of a message that this node can send again; 0: it cannot


class ControlMeter:
    """What one peer's gossip stream asked for so far; ``size_of`` looks a message id up."""

    def __init__(self, topic: str, size_of: SizeOf) -> None:
        self._topic, self._size_of = topic, size_of
        self._ids = limits.Bucket(limits.CONTROL_IDS_PER_S, limits.CONTROL_IDS_BURST)
        self._changes = limits.Bucket(limits.SUBSCRIPTIONS_PER_S, limits.SUBSCRIPTIONS_BURST)
        self._answers = limits.Bucket(limits.IWANT_BYTES_PER_S, limits.IWANT_BYTES_BURST)
        self._asked: Counter[bytes] = Counter()  # how often this peer asked for a message

    def trim(self, rpc: rpc_pb2.RPC, now: float) -> None:
        """Leave in ``rpc`` what is to be followed.  Raises FloodError."""
        rpc.ClearField("senderRecord")  # costs a signature check each time, and hello tells addresses
        subscriptions = [one for one in rpc.subscriptions if one.topicid == self._topic]
        ensure(
            self._changes.take(len(subscriptions), now),
            FloodError(f"{len(subscriptions)} subscriptions to one topic at once, or too many one after the other"),
        )
        del rpc.subscriptions[:]
        rpc.subscriptions.extend(subscriptions[-1:])  # the last one says what holds
        if rpc.HasField("control"):
            self._trim_control(rpc.control, now)

    def _trim_control(self, control: rpc_pb2.ControlMessage, now: float) -> None:
        parts = len(control.ihave) + len(control.iwant) + len(control.graft) + len(control.prune)
        ids = sum(len(one.messageIDs) for one in control.ihave) + sum(len(one.messageIDs) for one in control.iwant)
        ensure(
            self._ids.take(parts + ids, now), FloodError(f"a pubsub control message with {parts} parts and {ids} ids")
        )
        haves = [id_ for one in control.ihave if one.topicID == self._topic for id_ in one.messageIDs]
        wants = self._wanted([id_ for one in control.iwant for id_ in one.messageIDs], now)
        grafted = any(one.topicID == self._topic for one in control.graft)
        pruned = [one.backoff for one in control.prune if one.topicID == self._topic]
        control.Clear()
        haves = [id_ for id_ in dict.fromkeys(haves) if len(id_) <= limits.MAX_MESSAGE_ID]
        if haves:
            control.ihave.add(topicID=self._topic, messageIDs=haves[: limits.MAX_IDS])
        if wants:
            control.iwant.add(messageIDs=wants)
        if grafted:
            control.graft.add(topicID=self._topic)
        if pruned:
            control.prune.add(topicID=self._topic, backoff=min(pruned[-1], limits.MAX_BACKOFF_S))

    def _wanted(self, ids: list[bytes], now: float) -> list[bytes]:
        chosen = []
        for id_ in dict.fromkeys(ids):
            size = self._size_of(id_) if len(id_) <= limits.MAX_MESSAGE_ID else 0
            if size and self._asked[id_] < limits.MAX_RESENT and self._answers.take(size, now):
                self._asked[id_] += 1
                chosen.append(id_)
        if len(self._asked) > limits.MAX_IDS:  # messages that old are not held any more
            self._asked = Counter(dict(list(self._asked.items())[-limits.MAX_IDS // 2 :]))
        return chosen
