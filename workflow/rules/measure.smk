# Records are not outputs of a rule: Snakemake deletes the outputs of a job that it starts or interrupts, and
# a record, once measured, is never thrown away. A job's output is the list of its records, written when all
# are there; a rerun measures only what is missing, and one that would replace a record is refused (`ringmark job`).


def jobs_file(wildcards):
    # Asked while the graph of jobs is built: a job that an earlier run left behind ends before Snakemake looks
    # at what is there, and is not started again.
    dag.before_starting(CAMPAIGN, workflow)
    return f"{CAMPAIGN.folder}/jobs/{wildcards.job}.job.json"


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
        cluster=CAMPAIGN.cluster_as_json,
    shell:
        "{params.ringmark} plan --from-json {params.config:q} > {log} 2>&1"


rule measure:
    input:
        # A job's name changes when what it asks for changes, so its age says nothing.
        job=ancient(jobs_file),
        image=ancient(CAMPAIGN.image_inputs),
    output:
        done=f"{CAMPAIGN.folder}/jobs/{{job}}.done.json",
    log:
        f"{CAMPAIGN.folder}/logs/{{job}}.log",
    # On one host all cores, so that no two jobs run beside each other.
    threads: workflow.resource_settings.cores or 1
    resources:
        **CAMPAIGN.resources,
        runtime=lambda wildcards: CAMPAIGN.minutes(wildcards.job),
    params:
        ringmark=dag.RINGMARK,
    shell:
        "{params.ringmark} job {input.job} --done {output.done} 2>&1 | tee {log}"
