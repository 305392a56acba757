"""The verbs of the command line: one file each, found by name.

A command file offers HELP (one line), add_arguments(parser) and run(args) -> exit status; INTERRUPTED says
what Ctrl-C leaves, where that is worth a word. Import heavy libraries inside run, so that `ringmark --help`
answers at once and tables never load torch.
"""
