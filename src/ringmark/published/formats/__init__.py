"""The log formats that can be read: one file each, found by name.

A file offers ORDER (lower is asked first) and Reader(document); a reader's `take(line)` returns the claims of
a line, an empty list for a line that it understands and that holds none, or None for a line of others. It
raises UserError, with file and line, for a line that is its own and broken. `close()` tells that the lines
end.
"""
