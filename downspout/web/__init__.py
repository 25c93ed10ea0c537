"""``--ui``: the web page of a run in progress, and the page's JSON API.

Once a second, a second thread (:mod:`downspout.web.page`) requests the metrics of the live view from the run's own
thread (:mod:`downspout.run.run_snapshots`), stores them (:mod:`downspout.web.history`), converts them to JSON
(:mod:`downspout.web.state`), and answers requests. It is read-only.

To change the page's JSON: state.py
To change how text is escaped: static/dom.js
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
