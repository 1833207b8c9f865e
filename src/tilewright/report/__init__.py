"""What a run came to, drawn: JSON objects, tables for the terminal, and one page in Markdown or HTML."""

from . import words
from .attempts import attempt_object, attempt_row, ended_object, profile_object, sweep_object, verdict_object
from .audits import audit_object, audit_table, audits_summary, audits_table, degenerate_table
from .comparisons import comparison_object, comparison_svg, comparison_tables
from .curves import AXES, Axis, Curve, compared, curve
from .discoveries import (
    calls_table,
    discoveries_summary,
    discoveries_table,
    discovery_object,
    discovery_svg,
    left_table,
    parts_table,
)
from .objects import bench_summary, summary, whose
from .page import html, markdown
from .profiles import profile_lines, profile_table
from .rewards import Against, Formula, RewardRule, reward
from .tables import bench_table, table

__all__ = [
    "whose", "attempt_object", "attempt_row", "ended_object", "profile_object", "profile_lines", "profile_table",
    "sweep_object", "words", "AXES", "Axis", "Curve", "compared", "comparison_object", "comparison_svg",
    "comparison_tables", "curve", "audit_object", "audit_table", "audits_summary", "audits_table", "degenerate_table",
    "discovery_object", "discoveries_summary", "discoveries_table", "left_table", "discovery_svg", "calls_table",
    "parts_table", "verdict_object", "Against", "Formula", "RewardRule", "reward", "summary", "bench_summary", "table",
    "bench_table", "markdown", "html",
]  # fmt: skip
