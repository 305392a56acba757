rule collect:
    input:
        CAMPAIGN.manifests,
    output:
        CAMPAIGN.cells_csv,
    log:
        f"{CAMPAIGN.folder}/logs/collect.log",
    localrule: True
    params:
        ringmark=dag.RINGMARK,
        folder=lambda wildcards, output: dag.folder_of(output[0]),
    shell:
        "{params.ringmark} collect {params.folder} > {log} 2>&1"


rule render:
    input:
        CAMPAIGN.cells_csv,
        dag.TEMPLATES,
    output:
        CAMPAIGN.table,
    log:
        f"{CAMPAIGN.folder}/logs/render.log",
    localrule: True
    params:
        ringmark=dag.RINGMARK,
        folder=lambda wildcards, input: dag.folder_of(input[0]),
    shell:
        "{params.ringmark} render {params.folder} > {log} 2>&1"


rule page:
    input:
        CAMPAIGN.cells_csv,
    output:
        report(
            CAMPAIGN.page,
            category="Campaign",
            labels={"page": CAMPAIGN.config.campaign},
        ),
    log:
        f"{CAMPAIGN.folder}/logs/report.log",
    localrule: True
    params:
        ringmark=dag.RINGMARK,
        folder=lambda wildcards, input: dag.folder_of(input[0]),
    shell:
        "{params.ringmark} report {params.folder} --out {output} > {log} 2>&1"
