# The image of the campaign, for the runtimes that need one: built once, and again only when a file that is
# in it changes. With `runtime: bare` nothing asks for it. Its id is in the output, which every record carries.
from ringmark import image


rule image:
    input:
        image.inputs(),
    output:
        str(image.RESULT),
    log:
        str(image.RESULT.with_suffix(".log")),
    localrule: True
    params:
        ringmark=dag.RINGMARK,
        runtime=lambda wildcards: CAMPAIGN.runtime,
    shell:
        "{params.ringmark} image --runtime {params.runtime} --out {output} > {log} 2>&1"
