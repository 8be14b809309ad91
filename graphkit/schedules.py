"""Schedules: runs that workers submit at the times of a cron expression (extra `schedules`).

    schedules.add(saver, "report", "0 9 * * 1-5", {"kind": "daily"}, timezone="Europe/Zurich")
    schedules.find_all(saver)
    schedules.remove(saver, "report")

`Worker.schedule` and `graphkit schedule` do the same. docs/scaling.md explains them.
"""

from graphkit._engine.schedules import Schedule as Schedule, add as add, find_all as find_all, remove as remove
from graphkit._public_names import set_public_module

__all__ = ["Schedule", "add", "find_all", "remove"]

set_public_module(globals(), __name__)
