# Records are not outputs of a rule: Snakemake deletes the outputs of a job that it starts or interrupts, and
# a record, once measured, is never thrown away. A job's output is the list of its records, written when all
# are there; a rerun measures only what is missing (`ringmark job`).


rule plan:
    output:
        CAMPAIGN.plan,
        CAMPAIGN.job_files,
    log:
        f"{CAMPAIGN.folder}/logs/plan.log",
    localrule: True
    params:
        ringmark=dag.RINGMARK,
        config=CAMPAIGN.as_json,
    shell:
        "{params.ringmark} plan --from-json {params.config:q} > {log} 2>&1"


rule measure:
    input:
        job=f"{CAMPAIGN.folder}/jobs/{{job}}.job.json",
    output:
        done=f"{CAMPAIGN.folder}/jobs/{{job}}.done.json",
    log:
        f"{CAMPAIGN.folder}/logs/{{job}}.log",
    threads: workflow.cores or 1
    params:
        ringmark=dag.RINGMARK,
    shell:
        "{params.ringmark} job {input.job} --done {output.done} 2>&1 | tee {log}"
