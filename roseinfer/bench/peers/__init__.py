"""Other engines on the same weights, each in a process of its own and in their own environment (`make peers`).

*_peer.py and serve.py run there, as scripts: they import nothing of roseinfer, and roseinfer nothing of theirs but the
wait for idle threads. weights.py writes what they read, process.py talks to them.
"""

from .process import PEERS, PeerProcess, why_no_peers
from .serve import wait_until_idle
from .weights import write_model

__all__ = ["PEERS", "PeerProcess", "wait_until_idle", "why_no_peers", "write_model"]
