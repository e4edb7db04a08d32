"""``python -m harness_adapters.environments NAME...``: installs the environments of these harnesses, or says which there are."""

from __future__ import annotations

import sys

from harness_adapters.environments.home import harness_home
from harness_adapters.environments.table import environments
from harness_adapters.errors import HarnessMissing


def main(names: list[str]) -> int:
    known = environments()
    if not names:
        print("\n".join(sorted(known)))
        return 0
    if unknown := [name for name in names if name not in known]:
        print(
            f"error: no harness {', '.join(unknown)}; there are: {', '.join(sorted(known))}", file=sys.stderr
        )
        return 2
    for name in names:
        try:
            known[name].install()
        except HarnessMissing as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        print(f"{name} is in {harness_home()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
