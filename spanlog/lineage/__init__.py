"""What became of a rollout's calls: lines of work, who said what on whose history, and which replies came to nothing.

A pure function over the spans of an ended rollout, in any order: several proxies that each saw a part of the calls give
what one would have given. docs/lineage.md has the rules, and the table of what is recorded and what trains.
"""

from spanlog.lineage.analyse import Line, Lineage, Place, Role, analyse
from spanlog.lineage.span import LineageSpan

__all__ = ["Line", "Lineage", "LineageSpan", "Place", "Role", "analyse"]
