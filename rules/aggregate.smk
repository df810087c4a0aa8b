# From rounds and audits to tables, figures, the report and the verdict on the whole call.

TABLES = ["results.csv", "ladder.csv", "audit.csv", "failures.csv", "summary.json", "ladder.md"]
PAGES = ["ladder", "waterfall", "throughput", "latency", "audit", "environment", "failures"]


# what the report opens with: the ladder, and links to the pages
report: "../docs/captions/start.rst"


rule aggregate:
    input:
        rounds=lambda w: rounds_of(ladders_of(w)),
        audits=lambda w: [engine.audit for engine in matrix.engines_of(ladders_of(w))],
        graphs=lambda w: matrix.graphs_of(ladders_of(w)),
        peaks=lambda w: [peaks for platform in matrix.platforms if (peaks := matrix.peaks(platform))],
    output:
        expand("results/{{scope}}{table}", table=TABLES),
    log:
        "logs/aggregate/{scope}aggregate.log",
    params:
        plan=spec(lambda w: steps.plan(matrix, ladders_of(w))),
        code=code("aggregate"),
    shell:
        "$PYTHON $SCRIPTS/aggregate.py --plan {params.plan:q} --output-dir results/{wildcards.scope} 2> {log:q}"


rule pages:
    input:
        expand("results/{table}", table=TABLES),
    output:
        [
            report(
                f"results/report/{page}.html",
                caption=f"../docs/captions/{page}.rst",
                category="Pages",
                labels={"page": f"{number} {page}"},
            )
            for number, page in enumerate(PAGES, 1)
        ],
        "results/report/start.html",
    log:
        "logs/aggregate/pages.log",
    params:
        code=code("pages"),
        captions=lambda w: text_hash("docs/captions"),
    shell:
        "$PYTHON $SCRIPTS/pages.py --results results --captions $SCRIPTS/../docs/captions"
        " --output-dir results/report 2> {log:q}"


# Snakemake's own report needs a call of its own, over files that are all there
rule report:
    input:
        rules.pages.output,
    output:
        "results/report.html",
    log:
        "logs/aggregate/report.log",
    shell:
        "$PYTHON -m snakemake --snakefile $SCRIPTS/../Snakefile --configfile .ladder/config.json --nolock"
        " --report {output:q} --report-stylesheet $SCRIPTS/../docs/captions/report.css -- {input:q} > {log:q} 2>&1"


# every call ends badly while anything that was asked for has no result
rule check:
    input:
        failures="results/{scope}failures.csv",
        report=lambda w: [] if w.scope else "results/report.html",
    output:
        "results/{scope}check.txt",
    log:
        "logs/aggregate/{scope}check.log",
    shell:
        "$PYTHON $SCRIPTS/check.py --failures {input.failures:q} --output {output:q}"
