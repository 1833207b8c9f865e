"""What takes the place of files of a candidate where it is exported: there nothing is compiled, all is loaded."""
