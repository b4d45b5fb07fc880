"""The order book: job orders heard by gossip, before the ledger has them."""
