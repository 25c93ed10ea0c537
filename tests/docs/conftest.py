from __future__ import annotations

from tests.sampling import WHOLE

# The site needs MkDocs, which `make test-all` and `make docs` install.
collect_ignore = [] if WHOLE else ["test_site.py"]
