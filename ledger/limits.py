"""Every bound on what a peer can make a ledger node keep, read or send, and the times of agreement."""

from __future__ import annotations

from gdf_market.codec import MAX_MESSAGE_BYTES

MAX_VALIDATORS = 100

# A block of this size and the widest certificate (67 of 100 validators) fit into one message together.
MAX_BLOCK_ENTRY_BYTES = 53_248
MAX_BLOCK_ENTRIES = 512
BATCH_BYTES = 60_000  # entries relayed in one message
MAX_BATCH_ENTRIES = 512

SLOT_WINDOW = 64  # votes, certificates and proposals further ahead than this are dropped
MAX_CAUGHT = 1_024  # (validator, epoch) pairs remembered as caught
MAX_EVIDENCE = 64  # accusations kept until the ledger has them
EVIDENCE_TTL_MS = 45 * 60_000  # of an evidence entry; it is signed anew while it is not in the ledger
MAX_RAW_SEEN = 20_000  # digests of entries already looked at

MEMPOOL_ENTRIES = 4_096
MEMPOOL_BYTES = 8 << 20
MEMPOOL_PER_AUTHOR = 64
DEFERRED_ENTRIES = 256  # entries refused now that a block under way may make valid
DEFERRED_PER_AUTHOR = 16
DEFERRED_MS = 30_000
RECHECKS_PER_BLOCK = 128  # of waiting and of deferred entries each, when the tip moves

MAX_PEERS = 256
SYNC_MESSAGES = 8  # messages that answer one sync request
SYNC_BYTES = MAX_MESSAGE_BYTES - 1_024
SYNC_BUFFER_BLOCKS = 512  # fetched blocks (28 MiB at most) that wait for the certificate that covers them
HELD_BLOCKS = 64  # certificates of fetched blocks of which one transaction is made
MAX_LINKS = 64  # links of the chain of validator sets in one message
PAGE_RECORDS = 512  # records of a snapshot in one message
RECORD_PART_CHARS = 16_384  # a longer record of a snapshot travels in parts
MAX_SNAPSHOT_RECORDS = 20_000_000
MAX_SNAPSHOT_BYTES = 8 << 30  # of record values; memory holds them anyway once they are the state
SNAPSHOT_WAIT_MS = 4_000  # how long a new node waits for somebody who offers a snapshot
SNAPSHOT_RESTARTS = 8  # epochs that may end while a snapshot is fetched, before blocks are fetched instead
CUT_OFF_MS = 10_000  # how long nobody ahead may hold the next block before a node takes a snapshot instead
HELP_BLOCKS = 8  # blocks resent in answer to one status
HELP_VOTES = 256  # votes resent in answer to one status

MARGIN_MS = 1_500  # how long a leader may take to propose once it has reason to
SUSPECT_MS = 300  # the same for a leader whose previous slot was skipped
BACKOFF_NUMERATOR, BACKOFF_DENOMINATOR = 3, 2  # growth of both per slot that is not finalized
MAX_MARGIN_MS = 16_000
UNFINALIZED_MS = 500  # a notarized tip that waits this long for its finalization asks for another block
MAX_CLOCK_AHEAD_MS = 5_000
STATUS_MS = 1_000  # heartbeat of a node that waits for something
QUIET_STATUSES = 5  # ... and that many times longer when all is final
URGENT_STATUS_MS = 200  # least time between two statuses sent because something is missing
SYNC_TIMEOUT_MS = 3_000
HELP_INTERVAL_MS = 150  # least time between two answers to one peer's statuses
RELAY_MS = 50  # entries received within this time of the last relay go out together
MAX_REFUSED = 200  # entries a peer may send in REFUSED_WINDOW_MS that the rules refuse: honest ones send hardly any
REFUSED_WINDOW_MS = 10_000
REFLOOD_MS = 5_000  # entries that no block took for so long are sent again
REFLOOD_BYTES = 32_768
