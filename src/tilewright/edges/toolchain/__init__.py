"""What is installed beside us and what works here: versions for the record, findings for `tilewright doctor`."""

from .finding import SanitizerFinding
from .findings import findings
from .installed import versions
from .languages import languages

__all__ = ["SanitizerFinding", "findings", "languages", "versions"]
