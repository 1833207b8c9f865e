"""`tilewright serve`: the judge over HTTP."""
