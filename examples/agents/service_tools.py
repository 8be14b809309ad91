"""The tools of service.yaml."""

from graphkit import RunnableConfig


def pay(amount: int, config: RunnableConfig) -> str:
    """Pay an amount."""
    # A payment service that gets the same key again does not pay again.
    return f"paid {amount}, reference {config.idempotency_key}"
