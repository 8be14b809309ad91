"""The tools of journey.yaml."""


def find_trains(city: str) -> list[str]:
    """Find the trains to a city."""
    return [f"07:15 to {city}", f"09:40 to {city}"]


def forecast(city: str) -> str:
    """Tell tomorrow's weather in a city."""
    return f"sunny in {city}"


def book(train: str, seats: int = 1) -> str:
    """Book seats in a train."""
    return f"booked {seats} x {train}"
