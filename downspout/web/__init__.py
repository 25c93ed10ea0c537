"""``--ui``: the web page of a run in progress, and the page's JSON API.

The run's own thread does one thing more: once a second, when it is asked, it takes the metrics that the live view takes
(:mod:`downspout.run.run_snapshots`). A second thread does the rest (:mod:`downspout.web.page`): it remembers them
(:mod:`downspout.web.history`), makes JSON of them (:mod:`downspout.web.state`), and answers. It can change nothing.

To change what the page's JSON holds: state.py
To change how rates of a window are computed: history.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "page": "served serving",
    },
)
