"""Load on a server by the clock, as post 002 has it: requests come whether or not earlier ones have ended (open loop).

- load(target, plan) -> list[Outcome]: send them to any address with OpenAI's API, and time what comes back
- plan_of(...): seeded arrivals, prompts, and which clients go away or send nonsense
- ServingResult.of(...): throughput, goodput and latencies, as a table, as JSON
- serving_chart(result): each request by its arrival
"""

from .chart import serving_chart
from .client import Outcome, Target, ask_models, load
from .plan import Planned, plan_of
from .result import Limits, ServingResult
from .verify import verify

__all__ = [
    "Limits",
    "Outcome",
    "Planned",
    "ServingResult",
    "Target",
    "ask_models",
    "load",
    "plan_of",
    "serving_chart",
    "verify",
]
