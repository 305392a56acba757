rule collect:
    input:
        CAMPAIGN.manifests,
    output:
        CAMPAIGN.cells_csv,
    log:
        f"{CAMPAIGN.folder}/logs/collect.log",
    localrule: True
    shell:
        "{dag.RINGMARK} collect {CAMPAIGN.folder} > {log} 2>&1"


rule render:
    input:
        CAMPAIGN.cells_csv,
        dag.TEMPLATES,
    output:
        CAMPAIGN.table,
    log:
        f"{CAMPAIGN.folder}/logs/render.log",
    localrule: True
    shell:
        "{dag.RINGMARK} render {CAMPAIGN.folder} > {log} 2>&1"
