import os

from hypothesis import HealthCheck, settings

# The default run is the same on every machine and at every hour; HYPOTHESIS_PROFILE=search looks for new examples.
settings.register_profile(
    "fixed",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("search", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
