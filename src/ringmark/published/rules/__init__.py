"""The audit's rules: one file each, found by name.

A file offers TITLE (what it asks, in a few words) and check(corpus), which yields findings. A rule looks at
what any source could print; none knows a particular document.
"""
