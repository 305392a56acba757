# The root entry. A Snakefile that only includes another runs nothing and exits 0, so this one is a module
# over workflow/Snakefile, from where all rules come.


module ringmark:
    snakefile:
        "workflow/Snakefile"
    config:
        config


use rule * from ringmark
