"""Attackers as processes of their own against a real node, and what the node makes of them."""
